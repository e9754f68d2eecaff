"""Which planned node each engine and rank is on. Pure: the same topology gives the same placement."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from heapq import heapify, heapreplace
from typing import Literal

from dspark_train.errors import UsageError
from dspark_train.plan.spec import PlannedNode
from dspark_train.topology.resolve import Resolved
from dspark_train.topology.rules_nodes import engine_gpus, groups
from dspark_train.topology.schema import Topology

_ROLES: dict[str, Literal["shared", "inference", "training"]] = {
    "shared": "shared",
    "inference": "inference",
    "training": "training",
}


class NoRoom(UsageError):
    """``member`` has no node."""

    def __init__(self, member: str, why: str) -> None:
        super().__init__(f"{member} {why}")
        self.member = member


def planned_nodes(topology: Topology) -> tuple[PlannedNode, ...]:
    """Every node that the topology describes, set by set: ``set0-inference-0``, ``set0-training-0``, ..."""
    return tuple(
        _planned(topology, number, name, place, group.gpus)
        for number in range(topology.sets)
        for name, group in groups(topology).items()
        for place in range(group.count)
    )


def _planned(topology: Topology, number: int, name: str, place: int, num_gpus: int) -> PlannedNode:
    span = topology.engines.nodes_per_engine
    domain = f"set{number}-{place // span}" if span > 1 and name != "training" else ""
    node = f"set{number}-{name}-{place}"
    return PlannedNode(name=node, role=_ROLES[name], set_index=number, num_gpus=num_gpus, domain=domain)


def head(nodes: Sequence[PlannedNode]) -> str:
    """The node of the controller, the ledger and the store's master: the first that trains."""
    return next(node.name for node in nodes if node.role in ("training", "shared"))


def engine_nodes(resolved: Resolved, nodes: Sequence[PlannedNode], index: int) -> tuple[str, ...]:
    """The nodes of engine ``index`` (from 1), the one that answers requests first.

    Engines go round the sets, so that few of them still use every set's network. Raises UsageError where the GPUs of
    all nodes are taken by the engines before it.
    """
    places = _engine_places(resolved.topology, nodes)
    gpus, each = places[0][0].num_gpus, engine_gpus(resolved.topology)
    most = len(places) * (gpus // each) if gpus and each else index
    if index > most:
        raise UsageError(f"engine-{index} has no node: {len(nodes)} nodes hold {most} engines: add nodes or sets")
    return tuple(node.name for node in places[(index - 1) % len(places)])


def rank_nodes(resolved: Resolved, nodes: Sequence[PlannedNode], num_ranks: int) -> list[str]:
    """The node of each rank: the one with the most GPUs left by the engines and the ranks before it.

    On CPU nodes it is the one with the least on it. Raises UsageError where no GPU is left.
    """
    taken = _taken_by_engines(resolved.topology, nodes)
    trains = [node for node in nodes if node.role in ("training", "shared")]
    free = [(taken[node.name] - node.num_gpus, place) for place, node in enumerate(trains)]
    heapify(free)
    chosen = []
    for index in range(num_ranks):
        below_zero, place = free[0]
        if resolved.device == "cuda" and below_zero >= 0:
            raise UsageError(f"rank-{index} has no GPU: those of {len(nodes)} nodes are taken: add nodes or sets")
        chosen.append(trains[place].name)
        heapreplace(free, (below_zero + 1, place))
    return chosen


def spare_place(
    resolved: Resolved,
    nodes: Sequence[PlannedNode],
    taken: Mapping[str, int],
    index: int,
    closed: Collection[str] = (),
) -> list[str]:
    """The nodes for one more engine, number ``index``: those with the least on them, none of them ``closed``.

    taken: processes on each node, or GPUs where nodes have some. Raises NoRoom where no place has the GPUs.
    """
    places, each = _engine_places(resolved.topology, nodes), engine_gpus(resolved.topology)
    places = [place for place in places if not any(node.name in closed for node in place)]
    if resolved.device == "cuda":
        places = [place for place in places if all(node.num_gpus - taken.get(node.name, 0) >= each for node in place)]
    if not places:
        raise NoRoom(f"engine-{index}", f"has no node: {_gone(nodes, closed)}: add nodes or sets")
    best = min(places, key=lambda place: sum(taken.get(node.name, 0) for node in place))
    return [node.name for node in best]


def spare_node(
    resolved: Resolved,
    nodes: Sequence[PlannedNode],
    taken: Mapping[str, int],
    index: int,
    closed: Collection[str] = (),
) -> str:
    """The node for one more rank, number ``index``: see `spare_place`. Raises NoRoom."""
    trains = [node for node in nodes if node.role in ("training", "shared") and node.name not in closed]
    if resolved.device == "cuda":
        trains = [node for node in trains if node.num_gpus > taken.get(node.name, 0)]
    if not trains:
        lacking = "GPU" if resolved.device == "cuda" else "node"
        raise NoRoom(f"rank-{index}", f"has no {lacking}: {_gone(nodes, closed)}: add nodes or sets")
    return min(trains, key=lambda node: taken.get(node.name, 0) - node.num_gpus).name


def _gone(nodes: Sequence[PlannedNode], closed: Collection[str]) -> str:
    return f"those of {len(nodes)} nodes are taken" + (f", or drained ({', '.join(sorted(closed))})" if closed else "")


def _taken_by_engines(topology: Topology, nodes: Sequence[PlannedNode]) -> Counter[str]:
    places, each = _engine_places(topology, nodes), engine_gpus(topology)
    taken: Counter[str] = Counter()
    for index in range(topology.engines.count.start):
        taken.update({node.name: each for node in places[index % len(places)]})
    return taken


def _engine_places(topology: Topology, nodes: Sequence[PlannedNode]) -> list[tuple[PlannedNode, ...]]:
    """Groups of ``nodes_per_engine`` nodes of one set, those that are first in their sets first."""
    span = topology.engines.nodes_per_engine
    placed = []
    for number in sorted({node.set_index for node in nodes}):
        own = [node for node in nodes if node.set_index == number and node.role in ("inference", "shared")]
        placed += [(start, tuple(own[start : start + span])) for start in range(0, len(own) - span + 1, span)]
    return [place for _, place in sorted(placed, key=lambda entry: entry[0])]
