"""Nodes that join a cluster are taken where a pool grows; who has room without them takes none."""

from pathlib import Path

import pytest

from dspark_train.cluster.protocol import NodeInfo
from dspark_train.controller.joining import with_joined
from dspark_train.errors import UsageError
from dspark_train.plan.build import build_plan
from dspark_train.plan.growth import grow, member_names
from dspark_train.topology.facts import TargetFacts
from dspark_train.topology.load import load
from dspark_train.topology.resolve import resolve

TOPOLOGIES = Path(__file__).parents[2] / "topologies"


def node(number, gpus=4):
    return NodeInfo(str(number), f"10.0.0.{number}", num_gpus=gpus)


def grown_to(plan, resolved, num_engines, num_ranks):
    return grow(plan, resolved, member_names("engine", num_engines), member_names("rank", num_ranks))


@pytest.fixture
def rack():
    """The three-node set, resolved, its plan, and what its nodes are."""
    resolved = resolve(load(TOPOLOGIES / "gb300-3node.yaml", ("target.shape.num_layers=93",)), TargetFacts())
    plan = build_plan(resolved)
    return resolved, plan, {planned.name: node(number) for number, planned in enumerate(plan.nodes, start=1)}


def test_an_engine_more_takes_two_nodes_that_joined(rack):
    resolved, plan, bound = rack
    usable = [*bound.values(), node(4), node(5), node(6)]
    joined, after = with_joined(plan, resolved.topology, bound, usable, {"engine": 1})
    assert [planned.name for planned in joined.nodes[3:]] == ["joined1-inference-0", "joined1-inference-1"]
    assert {after[planned.name].id for planned in joined.nodes[3:]} == {"4", "5"}
    grown = grown_to(joined, resolved, 2, 4)
    assert [process.node for process in grown.processes[-2:]] == ["joined1-inference-0", "joined1-inference-1"]


def test_too_few_nodes_that_joined_are_not_taken_and_the_engine_is_refused(rack):
    resolved, plan, bound = rack
    joined, after = with_joined(plan, resolved.topology, bound, [*bound.values(), node(4)], {"engine": 1})
    assert joined == plan
    assert after == bound
    with pytest.raises(UsageError, match="engine-2 has no node"):
        grown_to(joined, resolved, 2, 4)


def test_ranks_take_a_node_only_when_no_gpu_is_left(rack):
    resolved, plan, bound = rack
    usable = [*bound.values(), node(4)]
    joined, _ = with_joined(plan, resolved.topology, bound, usable, {"rank": 1})
    assert [process.node for process in grown_to(joined, resolved, 1, 5).processes[-1:]] == ["joined1-training-0"]
    few = resolve(
        load(TOPOLOGIES / "gb300-3node.yaml", ("target.shape.num_layers=93", "trainers.ranks.start=2")), TargetFacts()
    )
    small = build_plan(few)
    assert with_joined(small, few.topology, bound, usable, {"rank": 1})[0] == small


def test_nodes_without_gpus_are_taken_before_any_is_shared():
    resolved = resolve(load(TOPOLOGIES / "quickstart.yaml", ()), TargetFacts())
    plan = build_plan(resolved)
    bound = {planned.name: node(number, 0) for number, planned in enumerate(plan.nodes, start=1)}
    usable = [*bound.values(), node(8, 0)]
    joined, _ = with_joined(plan, resolved.topology, bound, usable, {"engine": 1})
    grown = grown_to(joined, resolved, 2, 1)
    assert grown.process("engine-2.0").node == "joined1-shared-0"
    alone, _ = with_joined(plan, resolved.topology, bound, list(bound.values()), {"engine": 1})
    assert grown_to(alone, resolved, 2, 1).process("engine-2.0").node == plan.nodes[0].name
