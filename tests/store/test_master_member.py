"""The member Master around the real `mooncake_master` and around programs that fail as it does."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from dspark_train.errors import StartError
from dspark_train.plan.build import build_plan
from dspark_train.plan.run_layout import RunLayout
from dspark_train.store.master import Master
from dspark_train.store.on_mooncake import MooncakeClient
from dspark_train.store.ports import PortLock, lock_directory
from dspark_train.topology.facts import TargetFacts
from dspark_train.topology.load import load
from dspark_train.topology.resolve import resolve
from tests.engine.fakes import FakeLedger

DEADLINE_S = 30.0
TOPOLOGY = Path(__file__).parents[2] / "topologies" / "quickstart.yaml"


def until(fact: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while not fact():
        assert time.monotonic() < deadline_s
        time.sleep(0.1)


def master_of(tmp_path: Path, *argv: str, hung_after_s: float = 6.0) -> tuple[Master, dict[str, str], dict[str, int]]:
    """A master, and hosts and ports to start it with. argv: instead of the planned one."""
    layout = RunLayout(tmp_path / "run")
    layout.root.mkdir()
    resolved = resolve(load(TOPOLOGY), TargetFacts())
    plan = build_plan(resolved)
    if argv:
        processes = tuple(p.model_copy(update={"argv": argv}) if p.kind == "master" else p for p in plan.processes)
        plan = plan.model_copy(update={"processes": processes})
    layout.plan.write_text(plan.model_dump_json())
    layout.resolved.write_text(resolved.model_dump_json())
    master = Master(str(layout.root), FakeLedger([], ""), hung_after_s=hung_after_s)
    hosts = {node.name: "127.0.0.1" for node in plan.nodes}
    return master, hosts, {f"master.{name}": port for name, port in master.reserve_ports().items()}


@pytest.mark.real
def test_the_planned_master_starts_tells_its_figures_and_stops_twice_over(tmp_path):
    master, hosts, ports = master_of(tmp_path)
    assert master.status()["state"] == "starting"
    started = master.start(hosts, ports)
    assert master.start(hosts, ports) == started == {"pid": started["pid"], "rpc": f"127.0.0.1:{ports['master.rpc']}"}
    status = master.status()
    assert status["state"] == "ready"
    assert status["pid"] == started["pid"]
    assert (status["capacity_bytes"], status["used_bytes"], status["num_keys"], status["num_evicted"]) == (0, 0, 0, 0)
    master.stop(5)
    master.stop(5)
    assert master.status()["state"] == "stopped"
    for port in ports.values():
        PortLock(port, lock_directory()).release()


@pytest.mark.real
def test_a_master_that_was_killed_is_back_on_its_ports_and_its_clients_join_it(tmp_path):
    master, hosts, ports = master_of(tmp_path)
    rpc = master.start(hosts, ports)["rpc"]
    client = MooncakeClient(
        local_hostname="127.0.0.1", master=rpc, segment_bytes=32 * 2**20, buffer_bytes=16 * 2**20, timeout_s=20
    )
    client.put("before", b"x", client.segment)
    os.kill(master.status()["pid"], signal.SIGKILL)
    until(lambda: master.status()["state"] == "dead")
    assert master.start(hosts, ports)["rpc"] == rpc
    until(lambda: master.status()["capacity_bytes"] == 32 * 2**20)
    client.put("after", b"x", client.segment)
    assert client.exist(["before", "after"]) == [False, True]
    client.close()
    master.stop(5)


@pytest.mark.real
def test_a_master_that_stands_still_is_hung_after_a_while_and_is_replaced_by_starting_it(tmp_path):
    master, hosts, ports = master_of(tmp_path, hung_after_s=2.5)
    pid = master.start(hosts, ports)["pid"]
    os.kill(pid, signal.SIGSTOP)
    assert master.status()["state"] == "ready"
    until(lambda: master.status()["state"] == "hung")
    assert "does not answer" in master.status()["error"]
    assert master.start(hosts, ports)["pid"] != pid
    assert master.status()["state"] == "ready"
    master.stop(5)


@pytest.mark.real
def test_another_member_takes_the_ports_of_one_that_was_killed(tmp_path):
    code = (
        "import sys, time; from dspark_train.store.master import Master\n"
        "import json; master = Master(sys.argv[1], None); ports = master.reserve_ports()\n"
        "master.start(json.loads(sys.argv[2]), {f'master.{name}': port for name, port in ports.items()})\n"
        "print(json.dumps(ports), flush=True); time.sleep(600)"
    )
    master, hosts, _ = master_of(tmp_path)
    master.stop(1)
    argv = [sys.executable, "-c", code, str(tmp_path / "run"), json.dumps(hosts)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as actor:
        assert actor.stdout is not None
        wanted = json.loads(actor.stdout.readline())
        actor.kill()
    other = Master(str(tmp_path / "run"), FakeLedger([], ""))
    assert other.reserve_ports(wanted) == wanted == other.reserve_ports()
    other.start(hosts, {f"master.{name}": port for name, port in wanted.items()})
    assert other.status()["state"] == "ready"
    other.stop(5)


def test_a_master_that_ends_at_once_is_an_error_with_its_log(tmp_path):
    master, hosts, ports = master_of(tmp_path, "python", "-c", "raise SystemExit('no such flag')")
    with pytest.raises(StartError, match=r"mooncake_master exited with code 1; log: .*master.log") as caught:
        master.start(hosts, ports)
    assert caught.value.last_lines == ("no such flag",)
    assert master.status()["state"] == "dead"
    master.stop(1)
