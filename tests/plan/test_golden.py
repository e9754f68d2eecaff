"""The GB300 topologies, planned to the argv of their processes."""

from __future__ import annotations

import json
import time

import pytest

from .golden import GOLDEN, NAMES, planned, summary

MAX_PLAN_CPU_S = 1.0


@pytest.mark.parametrize("name", NAMES)
def test_a_gb300_topology_is_planned_as_it_was_read_and_agreed_to(name: str) -> None:
    golden = json.loads((GOLDEN / f"{name}.json").read_text(encoding="utf-8"))
    assert json.loads(json.dumps(summary(planned(name)))) == golden


def test_a_rack_is_planned_in_less_than_a_second() -> None:
    planned("gb300-3node")  # imports and schemas are loaded once
    started_s = time.process_time()
    plan = planned("gb300-nvl72")
    assert time.process_time() - started_s < MAX_PLAN_CPU_S
    assert sum(node.num_gpus for node in plan.nodes) == 72


def test_a_rack_uses_every_gpu_once_and_gives_each_rank_as_many_packs() -> None:
    plan = planned("gb300-nvl72")
    used = {node.name: sum(p.num_gpus for p in plan.processes if p.node == node.name) for node in plan.nodes}
    assert set(used.values()) == {4}
    num_ranks = sum(process.kind == "rank" for process in plan.processes)
    assert plan.capacity.step_bytes == 86016 * 8192 * 48
    assert (num_ranks, 48 % num_ranks) == (24, 0)


def test_the_topologies_of_one_recipe_differ_in_size_alone() -> None:
    from dspark_train.topology.load import load

    from .golden import TOPOLOGIES

    three, *others = [load(TOPOLOGIES / f"{name}.yaml", ()) for name in NAMES]
    for other in others:
        assert (other.target, other.draft, other.nodes) == (three.target, three.draft, three.nodes)
        assert (other.engines.vllm, other.engines.env) == (three.engines.vllm, three.engines.env)
