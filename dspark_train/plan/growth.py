"""The plan of a run whose pools have grown: what runs stays where it is, what is lacking is placed. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from itertools import count, islice
from typing import Literal

from dspark_train.errors import TopologyError
from dspark_train.plan.capacity import plan_capacity, store_problem
from dspark_train.plan.commands import engine_on, rank_on
from dspark_train.plan.placement import spare_node, spare_place
from dspark_train.plan.spec import Plan, ProcessSpec
from dspark_train.topology.resolve import Resolved

Kind = Literal["engine", "rank"]
KINDS: tuple[Kind, ...] = ("engine", "rank")
FIRST: dict[Kind, int] = {"engine": 1, "rank": 0}


def member_names(kind: Kind, num: int, retired: Collection[str] = ()) -> list[str]:
    """Who the ``num`` members of a pool are: engine-1, engine-2, ... or rank-0, rank-1, ...; never a retired one."""
    return list(islice((name for index in count(FIRST[kind]) if (name := f"{kind}-{index}") not in retired), num))


def number_of(name: str) -> int:
    """rank-2 -> 2; engine-3 -> 3, and any of its processes."""
    return int(engine_of(name).rpartition("-")[2])


def grow(
    plan: Plan, resolved: Resolved, engines: Sequence[str], ranks: Sequence[str], closed: Collection[str] = ()
) -> Plan:
    """The plan with these engines and ranks; nothing is taken out of it, and nothing new is placed on ``closed`` nodes.

    Raises UsageError where the nodes have no room, TopologyError where the store is too small for so many engines.
    """
    capacity = plan_capacity(resolved, len(engines), len(ranks))
    if problem := store_problem(resolved, capacity, len(engines), len(ranks)):
        raise TopologyError([problem])
    known = {engine_of(process.name) for process in plan.processes}
    meant = {*engines, *ranks}
    taken = Counter(_loads(resolved, (process for process in plan.processes if engine_of(process.name) in meant)))
    wanted: list[ProcessSpec] = []
    for name in engines:
        if name not in known:
            place = spare_place(resolved, plan.nodes, taken, number_of(name), closed)
            wanted += (made := engine_on(resolved, plan.nodes, number_of(name), place))
            taken.update(_loads(resolved, made))
    for name in ranks:
        if name not in known:
            node = spare_node(resolved, plan.nodes, taken, number_of(name), closed)
            wanted.append(rank := rank_on(resolved, number_of(name), node))
            taken.update(_loads(resolved, [rank]))
    return plan.model_copy(update={"processes": (*plan.processes, *wanted), "capacity": capacity})


def _loads(resolved: Resolved, processes: Iterable[ProcessSpec]) -> dict[str, int]:
    """Node -> GPUs that these processes take of it; where nodes have none, processes."""
    loads: Counter[str] = Counter()
    for process in processes:
        loads[process.node] += process.num_gpus if resolved.device == "cuda" else 1
    return loads


def engine_group(plan: Plan, number: int) -> list[ProcessSpec]:
    """The processes of an engine (from 1), the one that answers requests first."""
    return [process for process in plan.processes if engine_of(process.name) == f"engine-{number}"]


def engine_of(name: str) -> str:
    """The engine that a process is part of: engine-2.1 -> engine-2. Other names stand for themselves."""
    return name.rpartition(".")[0] or name
