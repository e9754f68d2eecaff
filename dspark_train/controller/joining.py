"""Nodes that joined the cluster after the launch, taken into the plan when a pool grows. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from dspark_train.cluster.protocol import NodeInfo
from dspark_train.controller.binding import fill
from dspark_train.errors import NoNode
from dspark_train.plan.growth import KINDS, Kind, engine_of
from dspark_train.plan.spec import Plan, PlannedNode
from dspark_train.topology.rules_nodes import engine_gpus, groups
from dspark_train.topology.schema import Topology

Bound = dict[str, NodeInfo]


def with_joined(
    plan: Plan,
    topology: Topology,
    bound: Mapping[str, NodeInfo],
    usable: Sequence[NodeInfo],
    num_more: Mapping[Kind, int],
    closed: Collection[str] = (),
    retired: Collection[str] = (),
) -> tuple[Plan, Bound]:
    """The plan with a node of its own for each new member that it has no empty node for, as far as there are any.

    bound: what the planned nodes are; usable: the cluster's nodes that answer; num_more: "engine" and "rank" -> members
    that are to come; closed: planned nodes that are to be left; retired: members that do not come back. Members without
    a node of their own share those that there are, where these have room. Returns the plan, and all planned nodes with
    what they are.
    """
    nodes, after = list(plan.nodes), dict(bound)
    for kind in KINDS:
        for _ in range(num_more.get(kind, 0) - _num_empty(plan, topology, kind, closed, retired)):
            made = _place(topology, kind, 1 + max(node.set_index for node in nodes))
            try:
                found = fill(made, {}, usable, {node.id for node in after.values()})
            except NoNode:
                break
            nodes += made
            after |= found
    return plan.model_copy(update={"nodes": tuple(nodes)}), after


def _place(topology: Topology, kind: str, number: int) -> list[PlannedNode]:
    """The nodes that one more engine, or rank, would have for itself."""
    there = groups(topology)
    role = "shared" if "shared" in there else "inference" if kind == "engine" else "training"
    span = topology.engines.nodes_per_engine if kind == "engine" else 1
    return [
        PlannedNode.model_validate(
            {
                "name": f"joined{number}-{role}-{place}",
                "role": role,
                "set_index": number,
                "num_gpus": there[role].gpus,
                "domain": f"joined{number}" if span > 1 else "",
            }
        )
        for place in range(span)
    ]


def _num_empty(plan: Plan, topology: Topology, kind: str, closed: Collection[str], retired: Collection[str]) -> int:
    """How many members of the kind the nodes that have none of it could still take, each for itself."""
    roles = ("inference", "shared") if kind == "engine" else ("training", "shared")
    span, each = (topology.engines.nodes_per_engine, engine_gpus(topology)) if kind == "engine" else (1, 1)
    processes = [process for process in plan.processes if engine_of(process.name) not in retired]
    used = Counter(process.node for process in processes if engine_of(process.name).partition("-")[0] == kind)
    gpus: Counter[str] = Counter()
    for process in processes:
        gpus[process.node] += process.num_gpus
    own = [node for node in plan.nodes if node.role in roles and node.name not in closed]
    return sum((n.num_gpus - gpus[n.name]) // each if n.num_gpus else not used[n.name] for n in own) // span
