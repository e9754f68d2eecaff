"""The liar in front of the stand-in, with the real store: every lie is told as ordered, and the truth between them."""

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import numpy as np
import psutil
import pytest

from dspark_train.engine.extract import HiddenShape, read_answer, request_body
from dspark_train.engine.liar import with_port
from dspark_train.engine.marker import marker_key
from dspark_train.engine.probe import check_hidden, read_marker, read_sample, wait_for
from dspark_train.engine.server import VllmServer
from dspark_train.errors import SampleMissing, WrongData
from dspark_train.store.on_mooncake import MooncakeClient
from dspark_train.store.ports import reserve_port
from dspark_train.store.tether import group_alive
from tests.engine.test_stand_in import IDS, SHAPE, WIDTH, command

TIMEOUT_S = 30.0


def test_the_port_alone_is_another_one():
    assert with_port(["serve", "m", "--port", "1", "--dtype", "x"], 2) == ["serve", "m", "--port", "2", "--dtype", "x"]
    assert with_port(["serve", "m", "--headless"], 2) == ["serve", "m", "--headless"]


@dataclass
class Stage:
    """A liar that runs; ``ask`` posts an extraction and returns what came of it."""

    url: str
    lies: Path
    reader: MooncakeClient
    server: VllmServer
    num_asked: int = 0

    def order(self, mode: str, **more: object) -> None:
        self.lies.write_text(json.dumps({"mode": mode, "count": 1, **more}))

    def ask(self, timeout_s: float = TIMEOUT_S) -> str:
        """Post, check the answer, and wait for the object a moment; returns the key."""
        self.num_asked += 1
        key = f"liar/{self.num_asked}"
        body = request_body("m", IDS, key, self.reader.segment)
        answer = httpx.post(f"{self.url}/v1/completions", json=body, timeout=timeout_s, trust_env=False)
        read_answer(answer, IDS, key, SHAPE)
        wait_for(self.reader, key, 1.0)
        return key

    def sample(self, shape: HiddenShape = SHAPE) -> tuple[np.ndarray, np.ndarray]:
        return read_sample(self.reader, self.ask(), len(IDS), shape)


@pytest.fixture(scope="module")
def stage(mooncake_master, tmp_path_factory) -> Iterator[Stage]:
    root: Path = tmp_path_factory.mktemp("liar")
    (root / "config.json").write_text(json.dumps({"hidden_size": WIDTH}))
    reader = MooncakeClient(
        local_hostname="127.0.0.1",
        master=mooncake_master.rpc,
        segment_bytes=64 * 2**20,
        buffer_bytes=16 * 2**20,
        timeout_s=TIMEOUT_S,
    )
    lock = reserve_port()
    argv = command(root, lock.port, mooncake_master.rpc, "dspark_train.engine.liar")
    env = {"DSPARK_HONEST_ENTRY": "dspark_train.engine.stand_in", "DSPARK_LIES_FILE": str(root / "lies.json")}
    server = VllmServer(argv, env, root / "e.log", f"http://127.0.0.1:{lock.port}")
    with server:
        server.start(TIMEOUT_S)
        yield Stage(server.base_url, root / "lies.json", reader, server)
    reader.close()
    lock.release()


@pytest.mark.real
def test_unordered_it_tells_the_truth(stage):
    hidden, tokens = stage.sample()
    check_hidden(hidden)
    assert tokens.tolist() == IDS


@pytest.mark.real
@pytest.mark.parametrize(
    ("mode", "text"), [("nan", "not finite"), ("zeros", "one value"), ("constant", "same for ever")]
)
def test_states_that_must_not_be_trained_on_are_put(stage, mode, text):
    stage.order(mode)
    with pytest.raises(WrongData, match=text):
        check_hidden(stage.sample()[0])
    check_hidden(stage.sample()[0])


@pytest.mark.real
def test_other_tokens_and_another_number_of_them_are_put(stage):
    stage.order("wrong_tokens")
    assert stage.sample()[1].tolist() == [token + 1 for token in IDS]
    stage.order("wrong_length")
    assert stage.sample()[1].tolist() != IDS


@pytest.mark.real
@pytest.mark.parametrize("mode", ["drop", "stale_key"])
def test_an_object_does_not_come(stage, mode):
    stage.order(mode)
    with pytest.raises(SampleMissing):
        stage.ask()
    assert stage.reader.exist([f"liar/{stage.num_asked}-stale"]) == [mode == "stale_key"]


@pytest.mark.real
def test_a_put_is_said_to_have_failed(stage):
    stage.order("non_finite")
    with pytest.raises(WrongData, match="Non-finite producer tensor"):
        stage.ask()
    key = f"liar/{stage.num_asked}"
    assert read_marker(stage.reader, key).kind == "wrong"
    stage.reader.remove([marker_key(key)])


@pytest.mark.real
def test_answers_are_errors_wrong_late_or_never_come(stage):
    def refused(mode: str, ask: Callable[[], object], error: type[Exception], match: str) -> None:
        stage.order(mode)
        with pytest.raises(error, match=match):
            ask()

    refused("error_500", stage.ask, Exception, "answered 500")
    refused("wrong_answer", stage.ask, WrongData, "other tokens")
    refused("hang", lambda: stage.ask(0.5), httpx.TimeoutException, "timed out")
    stage.order("slow", delay_s=0.5)
    began_s = time.monotonic()
    stage.ask()
    assert time.monotonic() - began_s >= 0.5


@pytest.mark.real
def test_it_ends_with_its_child_and_leaves_none(stage):
    (child,) = [p for p in psutil.Process(stage.server.pid).children() if "stand_in" in " ".join(p.cmdline())]
    child.kill()
    deadline_s = time.monotonic() + TIMEOUT_S
    while stage.server.alive():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
    assert stage.server.exit_code()
    assert not group_alive(child.pid)
