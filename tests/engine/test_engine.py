"""The member Engine around a stand-in for vLLM: a program that serves /health, or ends as vLLM does."""

import asyncio
from pathlib import Path

import pytest

from dspark_train.engine import engine as engine_module
from dspark_train.engine import feeder as feeder_module
from dspark_train.engine.conduct import Rule
from dspark_train.engine.engine import Engine, probe_tokens
from dspark_train.errors import StartError, WrongData
from dspark_train.plan.build import build_plan
from dspark_train.plan.run_layout import RunLayout
from dspark_train.store.in_memory import InMemoryServer
from dspark_train.store.ports import AddressInUse
from dspark_train.topology.facts import TargetFacts
from dspark_train.topology.resolve import resolve
from tests.engine.fakes import FakeLedger
from tests.engine.rig import topology, write_dataset

FACTS = TargetFacts(num_layers=4, hidden_size=64, vocab_size=512, is_local=True, path="/nowhere")
SERVES = """
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""
# Says that its port is taken at its first start (no file yet), and serves after that.
TAKEN_ONCE = (
    """
import pathlib, sys
seen = pathlib.Path(sys.argv[2])
if not seen.exists():
    seen.write_text(sys.argv[1])
    sys.exit("OSError: [Errno 98] Address already in use")
"""
    + SERVES
)


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Makes an engine whose program is the given code; what it was started on is at ``make.hosts``, ``make.ports``."""
    engines: list[Engine] = []
    store = InMemoryServer()
    monkeypatch.setattr(engine_module, "connect", lambda *args, **kwargs: store.client())
    write_dataset(tmp_path / "data")
    resolved = resolve(topology(Path("/nowhere"), tmp_path / "data"), FACTS)
    layout = RunLayout(tmp_path / "run")
    layout.root.mkdir()
    layout.resolved.write_text(resolved.model_dump_json())
    plan = build_plan(resolved)

    def new(code: str, *args: str, node_rank: int = 0) -> Engine:
        argv = ("python", "-c", code, "{port:engine-1.0.http}", *args)
        processes = tuple(p.model_copy(update={"argv": argv}) if p.kind == "engine" else p for p in plan.processes)
        layout.plan.write_text(plan.model_copy(update={"processes": processes}).model_dump_json())
        engines.append(Engine(str(layout.root), "engine-1.0", node_rank, FakeLedger([], "")))
        return engines[-1]

    new.hosts = {node.name: "127.0.0.1" for node in plan.nodes}
    yield new
    for engine in engines:
        asyncio.run(engine.stop(2))


def start(make, engine: Engine) -> dict:
    ports = {"master.rpc": 1, **{f"engine-1.0.{name}": port for name, port in engine.reserve_ports().items()}}
    return engine.start(make.hosts, ports)


def status(engine: Engine) -> dict:
    return asyncio.run(engine.status())


def test_a_started_engine_has_its_process_and_waits_for_its_probe(make):
    engine = make(SERVES)
    assert status(engine)["state"] == "starting"
    started = start(make, engine)
    assert started["pid"] == status(engine)["pid"]
    assert (status(engine)["num_lost"], status(engine)["since_success_s"]) == (0, 0.0)
    assert started["url"] == f"http://127.0.0.1:{started['ports']['http']}"
    assert status(engine)["state"] == "starting"


def test_a_taken_port_is_exchanged_for_another_one(make, tmp_path):
    engine = make(TAKEN_ONCE, str(tmp_path / "seen"))
    started = start(make, engine)
    assert started["ports"]["http"] != int((tmp_path / "seen").read_text())
    assert status(engine)["state"] == "starting"


def test_ports_that_stay_taken_end_the_start_after_three_times(make, tmp_path):
    engine = make(f"open({str(tmp_path / 'starts')!r}, 'a').write('x'); raise SystemExit('Address already in use')")
    with pytest.raises(AddressInUse):
        start(make, engine)
    assert (tmp_path / "starts").read_text() == "xxx"
    assert status(engine)["state"] == "dead"


def test_a_program_that_fails_is_reported_with_its_log(make):
    engine = make("raise SystemExit('ValueError: no such model')")
    with pytest.raises(StartError, match=r"exited with code 1 .*engine-1.0.log") as caught:
        start(make, engine)
    assert "ValueError: no such model" in caught.value.last_lines


def test_a_probe_that_fails_names_the_engine_and_its_log(make):
    engine = make(SERVES)
    start(make, engine)
    with pytest.raises(StartError, match=r"the probe extraction of engine-1.0 is wrong: the engine answered 501"):
        engine.probe("segment")
    assert status(engine)["state"] == "starting"


def test_probing_before_the_start_says_so(make):
    with pytest.raises(StartError, match=r"engine-1\.0 has not been started"):
        make(SERVES).probe("segment")


def test_a_follower_runs_without_answering_and_feeds_nothing(make):
    engine = make("import time; time.sleep(600)", node_rank=1)
    assert status(engine)["state"] == "starting"
    started = start(make, engine)
    assert started["url"] == ""
    asyncio.run(engine.feed())
    assert (status(engine)["pid"], status(engine)["state"]) == (started["pid"], "ready")


def test_stopping_ends_the_process_and_gives_the_ports_back_twice_over(make):
    engine = make(SERVES)
    first = start(make, engine)["ports"]
    asyncio.run(engine.stop(5))
    asyncio.run(engine.stop(5))
    assert status(engine)["state"] == "stopped"
    assert engine.reserve_ports().keys() == first.keys()


def test_an_engine_that_is_given_up_says_why_and_its_process_is_ended(make, monkeypatch):
    monkeypatch.setattr(feeder_module, "WATCH_S", 0.01)
    engine = make(SERVES)
    start(make, engine)

    async def cut_off() -> dict:
        await engine.feed()
        engine._peers.num_unreachable = 10**6
        engine._feeder._rule = Rule(request_timeout_s=40.0, silence_s=0.3)
        assert await asyncio.to_thread(engine._server._child.wait, 20)
        return await engine.status()

    found = asyncio.run(cut_off())
    assert found["state"] == "dead"
    assert found["error"].startswith("cut off from the ledger for ")


def test_probe_tokens_are_the_beginning_of_a_sample_with_tokens_that_differ():
    class Rows(list):
        def token_ids(self, sample):
            import numpy as np

            return np.array(self[sample])

    assert probe_tokens(Rows([[3], [4, 4], [5, 6, 7]])) == [5, 6, 7]
    assert len(probe_tokens(Rows([list(range(500))]))) == 64
    with pytest.raises(WrongData):
        probe_tokens(Rows([[3], [4, 4]]))
