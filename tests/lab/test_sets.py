"""An engine over two hosts and ranks on others train as one host does: same data, same losses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.lab import listeners
from tests.lab.line import LabLine, differences
from tests.lab.topologies import REAL_VLLM

pytestmark = [pytest.mark.lab, pytest.mark.real, pytest.mark.timeout(900)]

SAME_BYTES = 1e-6
LIVE_ENGINE = 1e-4
START_TIMEOUT_S = 300.0
PACED = ("trainers.min_step_s=0.5",)
OneHost = Callable[..., list[dict[str, Any]]]


def test_a_run_over_four_hosts_trains_as_one_on_one_host_and_listens_only_where_it_says(
    line: LabLine, one_host: OneHost
) -> None:
    reference = one_host()
    line.begin("four", *PACED)
    line.wait_until("four", lambda: line.state("four").get("step", 0) >= 4, START_TIMEOUT_S, "step 4")
    pools = line.state("four")["pools"]
    where = {member["name"]: member["node"] for pool in pools.values() for member in pool["members"]}
    first, second, third, fourth = (host.address for host in line.hosts)
    assert where == {"rank-0": first, "rank-1": second, "engine-1.0": third, "engine-1.1": fourth}
    assert {pool["ready"]: pool["pending"] for pool in pools.values()} == {1: 0, 2: 0}
    found = listeners.of_runs(line)
    assert line.ended("four")["state"] == "done", line.tail("four")
    assert differences(line.steps("four"), reference, SAME_BYTES) == []
    unexplained = listeners.unexplained(found)
    assert not unexplained, "\n".join(unexplained)
    line.wait_empty()


@pytest.mark.engine
@pytest.mark.lab_long
def test_a_real_engine_over_two_hosts_gives_what_one_on_one_host_gives(line: LabLine, one_host: OneHost) -> None:
    few = (*REAL_VLLM, "run.max_steps=8")
    reference = one_host(*few)
    steps = line.finish("vllm", *few, "trainers.ranks.start=1")
    assert differences(steps, reference, LIVE_ENGINE) == []
    line.wait_empty()
