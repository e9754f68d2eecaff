"""Hosts are left before they go: by hand, and because Ray is asked to drain them. Then their end costs nothing."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.faults.progress import Progress
from tests.lab.line import LabLine, differences
from tests.lab.network import Host
from tests.lab.table import Row, show
from tests.lab.topologies import LONG

pytestmark = [pytest.mark.lab, pytest.mark.lab_long, pytest.mark.real, pytest.mark.timeout(900)]

SAME_BYTES = 1e-6
WITHIN_S = 180.0
RUN_NAME = "drained"
PACED = "trainers.min_step_s=1"
LEAVES_IN_S = 600
OneHost = Callable[..., list[dict[str, Any]]]


def drain_by_ray(line: LabLine, host: Host) -> None:
    """Ask Ray to drain a host's node, as an autoscaler does before it takes one away."""
    assert line.nodes is not None
    roster = json.loads((line.root / "runs" / RUN_NAME / "roster.json").read_text())
    (ident,) = {node["id"] for node in roster["nodes"].values() if node["address"] == host.address}
    ray = (sys.executable, "-m", "ray.scripts.scripts", "drain-node", f"--address={line.nodes.address}")
    why = (
        "--reason=DRAIN_NODE_REASON_PREEMPTION",
        "--reason-message=spot",
        f"--deadline-remaining-seconds={LEAVES_IN_S}",
    )
    done = line.hosts[0].run(*ray, f"--node-id={ident}", *why, env=line.nodes.full_env)
    assert done.returncode == 0, done.stdout + done.stderr


def where(line: LabLine) -> dict[str, str]:
    pools = line.state(RUN_NAME)["pools"]
    return {member["name"]: member["node"] for pool in pools.values() for member in pool["members"]}


def test_a_run_leaves_an_engines_host_by_hand_and_a_ranks_host_that_ray_drains_and_then_both_may_die(
    spare_line: LabLine, one_host: OneHost
) -> None:
    line = spare_line
    assert line.nodes is not None
    first, second, third, fourth, fifth = line.hosts
    line.begin(RUN_NAME, *LONG, PACED)
    progress = Progress(line.root / "runs" / RUN_NAME)
    line.wait_until(RUN_NAME, lambda: progress.step >= 5, WITHIN_S, "step 5")
    refused = line.run("scale", RUN_NAME, "--drain", fourth.address)
    assert (refused.returncode, "engine-1 cannot leave its nodes" in refused.stderr) == (2, True), refused.stderr
    line.nodes.start(fifth)

    by_hand, began_s = Row("engine's second host", "scale --drain"), time.time()
    scaled = line.run("scale", RUN_NAME, "--drain", fourth.address, "--wait")
    assert scaled.returncode == 0, scaled.stdout + scaled.stderr
    by_hand.well_after_s = time.time() - began_s
    assert line.members_on(fourth) == []
    assert (where(line)["engine-1.0"], where(line)["engine-1.1"]) == (third.address, fifth.address)
    by_hand.stood_still_s = max(0.0, progress.longest_gap_s(began_s, time.time()) - progress.usual_s())

    by_ray, asked_s = Row("rank's host", "ray drain-node"), time.time()
    drain_by_ray(line, second)
    by_ray.noticed_after_s = line.wait_until(
        RUN_NAME, lambda: line.events(RUN_NAME, "node.leaving"), WITHIN_S, "node.leaving"
    )
    line.wait_until(RUN_NAME, lambda: where(line).get("rank-2") == first.address, WITHIN_S, "a rank elsewhere")
    line.wait_until(RUN_NAME, lambda: not line.members_on(second), WITHIN_S, "the rank's host is empty")
    line.wait_until(RUN_NAME, lambda: progress.is_well(asked_s), WITHIN_S, "nothing lacking")
    by_ray.well_after_s = time.time() - asked_s
    by_ray.stood_still_s = max(0.0, progress.longest_gap_s(asked_s, time.time()) - progress.usual_s())
    assert line.state(RUN_NAME)["drained"] == [second.address, fourth.address]

    fourth.kill()
    second.kill()
    step = progress.step
    line.wait_until(RUN_NAME, lambda: progress.step >= step + 5, WITHIN_S, "five steps without the two hosts")
    show("drains", [by_hand, by_ray])
    deaths = [event for event in line.events(RUN_NAME) if event["kind"] in ("engine.dead", "rank.dead", "group.retry")]
    assert deaths == []
    assert line.run("stop", RUN_NAME, "--wait").returncode == 0
    progress.close()
    steps = line.steps(RUN_NAME)
    assert differences(steps, one_host(*LONG, num_steps=len(steps)), SAME_BYTES) == []
