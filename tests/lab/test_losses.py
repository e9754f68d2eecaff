"""Hosts die, and others join: an engine is made anew where there is room, pools grow onto new nodes, a run outlives its
cluster.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.faults.progress import Progress
from tests.lab.conftest import labels
from tests.lab.line import LabLine, differences
from tests.lab.table import Row, show
from tests.lab.topologies import LONG

pytestmark = [pytest.mark.lab, pytest.mark.lab_long, pytest.mark.real, pytest.mark.timeout(1800)]

SAME_BYTES = 1e-6
WITHIN_S = 300.0
NOTICED_WITHIN_S = 60.0
PACED = "trainers.min_step_s=1"
OneHost = Callable[..., list[dict[str, Any]]]


def begin(line: LabLine, name: str) -> Progress:
    line.begin(name, *LONG, PACED)
    progress = Progress(line.root / "runs" / name)
    line.wait_until(name, lambda: progress.step >= 10, WITHIN_S, "step 10")
    return progress


def addresses(line: LabLine, name: str) -> dict[str, str]:
    """Member -> address of its node, as `status` has it."""
    pools = line.state(name)["pools"]
    return {member["name"]: member["node"] for pool in pools.values() for member in pool["members"]}


def test_an_engine_that_lost_a_host_is_made_anew_on_one_that_joins_and_ranks_grow_onto_another(
    spare_line: LabLine, one_host: OneHost
) -> None:
    line, name = spare_line, "loss"
    nodes, progress = line.nodes, begin(line, name)
    assert nodes is not None
    *_, third, fourth, fifth = line.hosts
    row, killed_s = Row("engine's second host", "power off"), time.time()
    fourth.kill()
    row.noticed_after_s = line.wait_until(name, lambda: line.events(name, "engine.dead"), WITHIN_S, "engine.dead")
    line.wait_until(name, lambda: line.events(name, "engine.waiting"), WITHIN_S, "engine.waiting")
    joined_s = time.time()
    nodes.start(fifth)
    line.wait_until(name, lambda: line.events(name, "engine.feeding"), WITHIN_S, "engine.feeding")
    line.wait_until(name, lambda: progress.is_well(joined_s), WITHIN_S, "nothing lacking")
    row.well_after_s = time.time() - joined_s
    row.stood_still_s = progress.longest_gap_s(killed_s, time.time()) - progress.usual_s()
    show("losses", [row])
    assert addresses(line, name)["engine-1.0"] == third.address
    assert addresses(line, name)["engine-1.1"] == fifth.address

    nodes.labels = labels({4: "training"})
    nodes.start(fourth)
    scaled = line.run("scale", name, "--trainers", "+1", "--wait", "--json")
    assert scaled.returncode == 0, scaled.stdout + scaled.stderr
    assert addresses(line, name)["rank-2"] == fourth.address
    assert line.run("stop", name, "--wait").returncode == 0
    progress.close()
    steps = line.steps(name)
    assert differences(steps, one_host(*LONG, num_steps=len(steps)), SAME_BYTES) == []


def test_a_run_whose_clusters_head_died_goes_on_in_the_clusters_next_life(
    spare_line: LabLine, one_host: OneHost
) -> None:
    line, name = spare_line, "head"
    nodes, progress = line.nodes, begin(line, name)
    assert nodes is not None
    head, *others = line.hosts
    row = Row("the cluster's head", "power off")
    killed_s = time.time()
    head.kill()

    def is_lost() -> bool:
        code, state = line.status(name)
        return (code, state["state"]) == (5, "lost")

    row.noticed_after_s = line.wait_until(name, is_lost, NOTICED_WITHIN_S, "status says that it is lost")
    deadline_s = time.monotonic() + WITHIN_S
    while any(line.members_on(host) for host in others):
        assert time.monotonic() < deadline_s, "members outlive their cluster"
        time.sleep(1)
    row.fenced_after_s = time.time() - killed_s
    swept = line.run("stop", name, "--now")
    assert swept.returncode == 0, swept.stdout + swept.stderr
    for host in others:
        host.kill()
    for host in line.hosts[:-1]:
        nodes.start(host)
    back_s = time.time()
    line.begin(name, *LONG, options=("--resume",))
    line.wait_until(name, lambda: progress.is_well(back_s), WITHIN_S, "nothing lacking")
    row.well_after_s = time.time() - back_s
    row.lost = "steps since the checkpoint, done again"
    show("losses", [row])
    line.wait_until(name, lambda: progress.step >= 60, WITHIN_S, "step 60")
    assert line.run("stop", name, "--wait").returncode == 0
    progress.close()
    steps = line.steps(name)
    assert differences(steps, one_host(*LONG, num_steps=len(steps)), SAME_BYTES) == []
