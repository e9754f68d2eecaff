"""Two sets, each an engine over two hosts and a rank on a third, train as one host does: same data, same losses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.lab.line import LabLine, differences
from tests.lab.network import Lab, missing
from tests.lab.ray_nodes import RayNodes
from tests.lab.topologies import REAL_VLLM

pytestmark = [pytest.mark.lab, pytest.mark.lab_long, pytest.mark.real, pytest.mark.timeout(1800)]

SAME_BYTES = 1e-6
LIVE_ENGINE = 1e-4
START_TIMEOUT_S = 600.0
RACKS = {1: "rack0", 2: "rack1", 3: "rack0", 4: "rack1", 5: "rack0", 6: "rack1"}
"""Host -> its NVLink domain: not in the order of the addresses, so that an engine is whole by the labels alone."""
NUM_TRAINING = 2
TWO_SETS = ("sets=2", "nodes={inference: {count: 2, gpus: 0}, training: {count: 1, gpus: 0}}", "engines.count.start=2")
OneHost = Callable[..., list[dict[str, Any]]]


@pytest.fixture(scope="module")
def racks(inputs: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabLine]:
    """Six hosts in two racks."""
    if why := missing():
        pytest.skip(f"the lab {why}")
    with Lab(len(RACKS)) as lab:
        labels = {
            number: {"dspark-role": "training" if number <= NUM_TRAINING else "inference", "ray.io/gpu-domain": rack}
            for number, rack in RACKS.items()
        }
        nodes = RayNodes(lab, labels)
        nodes.start_all()
        yield LabLine(tmp_path_factory.mktemp("racks"), inputs, nodes=nodes)


def placed(line: LabLine, name: str) -> dict[str, str]:
    """Member -> address of its node, as `status` has it, once a step was made."""
    line.wait_until(name, lambda: line.state(name).get("step", 0) >= 1, START_TIMEOUT_S, "step 1")
    pools = line.state(name)["pools"]
    return {member["name"]: member["node"] for pool in pools.values() for member in pool["members"]}


def expected(line: LabLine) -> dict[str, str]:
    """Engine 1 whole in the first rack, engine 2 in the second, and a rank in each."""
    members = ("rank-0", "rank-1", "engine-1.0", "engine-2.0", "engine-1.1", "engine-2.1")
    return {member: host.address for member, host in zip(members, line.hosts, strict=True)}


def test_two_sets_train_as_one_host_and_each_engine_is_whole_in_a_rack(racks: LabLine, one_host: OneHost) -> None:
    racks.begin("racks", *TWO_SETS, "trainers.min_step_s=0.5")
    assert placed(racks, "racks") == expected(racks)
    state = racks.ended("racks", START_TIMEOUT_S)
    assert state["state"] == "done", racks.tail("racks")
    assert differences(racks.steps("racks"), one_host(), SAME_BYTES) == []
    assert state["store"]["num_evicted"] == state["ledger"]["failed"] == 0
    racks.wait_empty()


@pytest.mark.engine
def test_two_real_engines_over_two_hosts_each_give_what_one_on_one_host_gives(
    racks: LabLine, one_host: OneHost
) -> None:
    few = (*REAL_VLLM, "run.max_steps=8")
    racks.begin("vllm", *TWO_SETS, *few)
    assert placed(racks, "vllm") == expected(racks)
    assert racks.ended("vllm", START_TIMEOUT_S)["state"] == "done", racks.tail("vllm")
    assert differences(racks.steps("vllm"), one_host(*few), LIVE_ENGINE) == []
    racks.wait_empty()
