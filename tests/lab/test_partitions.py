"""Hosts are cut off and come back: the run goes on, what is behind the cut stops itself, nothing is lost."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.faults.progress import Progress
from tests.lab.line import LabLine, differences
from tests.lab.network import Host
from tests.lab.table import Row, show
from tests.lab.topologies import LONG, SINGLE_NODE_ENGINES

pytestmark = [pytest.mark.lab, pytest.mark.real, pytest.mark.timeout(900)]

SAME_BYTES = 1e-6
START_TIMEOUT_S = 300.0
NOTICED_WITHIN_S = 60.0
"""`supervision.silence_s`, and some looks, on a busy machine."""
FENCED_WITHIN_S = 120.0
"""`supervision.fence_s`, and the grace that a member gets to stop."""
BACK_WITHIN_S = 180.0
RUN_NAME = "cut"
OneHost = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def progress(line: LabLine) -> Iterator[Progress]:
    """A run of two engines and two ranks, each on a host of its own."""
    name = RUN_NAME
    line.begin(name, *LONG, *SINGLE_NODE_ENGINES, "trainers.min_step_s=1")
    watched = Progress(line.root / "runs" / name)
    line.wait_until(name, lambda: watched.step >= 3, START_TIMEOUT_S, "step 3")
    yield watched
    watched.close()
    for host in line.hosts:
        host.heal()
    line.run("stop", name, "--now", "--wait")


def cut_off(line: LabLine, progress: Progress, host: Host, dead: str, back: str) -> Row:
    """Cut a host off until what runs there has stopped itself, heal the link, and wait until all is well."""
    name, began_s = RUN_NAME, time.time()
    step, num_dead, num_back = progress.step, len(line.events(name, dead)), len(line.events(name, back))
    host.cut()
    row = Row(f"host of {dead.partition('.')[0]}", "link cut")
    row.noticed_after_s = line.wait_until(
        name, lambda: len(line.events(name, dead)) > num_dead, NOTICED_WITHIN_S, f"{dead} in the journal"
    )
    line.wait_until(name, lambda: progress.step >= step + 8, BACK_WITHIN_S, "eight steps without that host")
    line.wait_until(name, lambda: not line.members_on(host), FENCED_WITHIN_S, f"no member left on {host.name}")
    row.fenced_after_s = time.time() - began_s
    host.heal()
    healed_s = time.time()
    assert line.nodes is not None
    line.nodes.rejoin(host)
    line.wait_until(name, lambda: len(line.events(name, back)) > num_back, BACK_WITHIN_S, f"{back} in the journal")
    line.wait_until(name, lambda: progress.is_well(healed_s), BACK_WITHIN_S, "nothing lacking")
    row.well_after_s = time.time() - healed_s
    row.stood_still_s = max(0.0, progress.longest_gap_s(began_s, time.time()) - progress.usual_s())
    return row


def test_a_run_goes_on_without_an_engine_host_and_a_trainer_host_that_are_cut_off_and_takes_them_back(
    line: LabLine, one_host: OneHost, progress: Progress
) -> None:
    trainer, engine = line.hosts[1], line.hosts[3]
    rows = [
        cut_off(line, progress, engine, "engine.dead", "engine.feeding"),
        cut_off(line, progress, trainer, "rank.dead", "group.formed"),
    ]
    show("partitions", rows)
    assert line.run("stop", RUN_NAME, "--wait").returncode == 0
    steps = line.steps(RUN_NAME)
    assert [step["step"] for step in steps] == list(range(1, len(steps) + 1))
    assert differences(steps, one_host(*LONG, num_steps=len(steps)), SAME_BYTES) == []
    assert line.state(RUN_NAME)["ledger"]["failed"] == 0
    line.wait_empty()
