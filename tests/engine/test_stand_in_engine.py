"""The member Engine around the stand-in and the real store: a whole data set, and each way to be given up."""

import asyncio
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from dspark_train.engine.probe import read_sample
from dspark_train.engine.stand_in_states import StandInStates
from tests.engine.rig import LAYERS, LENGTHS, SHAPE, WIDTH, Rig

pytestmark = pytest.mark.real
DEADLINE_S = 40.0
NUM_LAYERS = 4
STAND_IN = "dspark_train.engine.stand_in"
LIAR = "dspark_train.engine.liar"


@pytest.fixture
def start(tmp_path) -> Iterator[Callable[..., Rig]]:
    """Starts a rig whose engine section has the given keys."""
    rigs: list[Rig] = []
    target: Path = tmp_path / "target"
    target.mkdir()
    config = {"hidden_size": WIDTH, "num_hidden_layers": NUM_LAYERS, "vocab_size": 512}
    (target / "config.json").write_text(json.dumps(config))

    def make(entry: str, **engines: Any) -> Rig:
        rigs.append(Rig(tmp_path, target, {"entry": entry, **engines}))
        rigs[-1].start()
        rigs[-1].engine.probe(rigs[-1].reader.segment)
        return rigs[-1]

    yield make
    for rig in rigs:
        rig.stop()


def feed_until(rig: Rig, fact: Callable[[dict[str, Any]], object], begin: Callable[[], None] = lambda: None) -> dict:
    """Feed until the fact about the engine's status holds; returns that status. begin: called before feeding."""

    async def feed() -> dict[str, Any]:
        begin()
        await rig.engine.feed()
        deadline_s = time.monotonic() + DEADLINE_S
        while not fact(status := await rig.engine.status()):
            assert time.monotonic() < deadline_s, (rig.ledger, status)
            await asyncio.sleep(0.02)
        return status

    return rig.loop.run(feed())


def test_a_whole_data_set_is_extracted_as_it_would_be_by_any_other_stand_in(start):
    rig = start(STAND_IN)
    status = feed_until(rig, lambda status: len(rig.ledger.ready) == len(LENGTHS))
    assert (status["state"], status["num_lost"], status["tokens"]) == ("ready", 0, sum(LENGTHS))
    states = StandInStates((*LAYERS, NUM_LAYERS), WIDTH)
    for key in rig.ledger.ready:
        sample, _ = rig.ledger.leased[key]
        hidden, tokens = read_sample(rig.reader, key, LENGTHS[sample], SHAPE)
        assert np.array_equal(hidden, states.of(tokens.tolist()))


def test_an_engine_that_stands_still_is_given_up_and_ended(start):
    rig = start(STAND_IN, request_timeout_s=2.0)
    pid = rig.status["pid"]
    began_s = time.monotonic()
    status = feed_until(rig, lambda status: status["state"] == "dead", lambda: os.kill(pid, signal.SIGSTOP))
    print(f"given up after {time.monotonic() - began_s:.1f} s of a deadline of 2 s")
    assert status["error"].startswith("hung: nothing for ")
    assert status["in_flight"] == 0
    assert rig.ledger.dropped == ["engine-1.0"]
    deadline_s = time.monotonic() + DEADLINE_S
    while psutil.pid_exists(pid):
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("mode", "error"),
    [
        ("non_finite", "lies: "),
        ("wrong_answer", "lies: "),
        ("drop", "hung: "),
        ("hang", "hung: "),
        ("error_500", "fails: "),
    ],
)
def test_an_engine_that_lies_is_given_up_for_it(start, tmp_path, mode, error):
    lies = tmp_path / "lies.json"
    env = {"DSPARK_HONEST_ENTRY": STAND_IN, "DSPARK_LIES_FILE": str(lies)}
    rig = start(LIAR, request_timeout_s=2.0, env=env)
    status = feed_until(
        rig, lambda status: status["state"] == "dead", lambda: lies.write_text(json.dumps({"mode": mode})) and None
    )
    assert status["error"].startswith(error)
