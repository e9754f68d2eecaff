"""The plan of a run whose pools have grown: what runs stays where it is, what is lacking is placed. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from dspark_train.errors import TopologyError
from dspark_train.plan.capacity import plan_capacity, store_problem
from dspark_train.plan.commands import engine_on, rank_on
from dspark_train.plan.placement import spare_node, spare_place
from dspark_train.plan.spec import Plan, ProcessSpec
from dspark_train.topology.resolve import Resolved


def grow(plan: Plan, resolved: Resolved, num_engines: int, num_ranks: int) -> Plan:
    """The plan with engines 1 .. num_engines and ranks 0 .. num_ranks - 1; nothing is taken out of it.

    Raises UsageError where the nodes have no room, TopologyError where the store is too small for so many engines.
    """
    capacity = plan_capacity(resolved, num_engines, num_ranks)
    if problem := store_problem(resolved, capacity, num_engines, num_ranks):
        raise TopologyError([problem])
    known = {process.name for process in plan.processes}
    meant = {f"engine-{index}" for index in range(1, num_engines + 1)} | {f"rank-{index}" for index in range(num_ranks)}
    taken = Counter(_loads(resolved, (process for process in plan.processes if engine_of(process.name) in meant)))
    wanted: list[ProcessSpec] = []
    for index in range(1, num_engines + 1):
        if f"engine-{index}.0" not in known:
            place = spare_place(resolved, plan.nodes, taken, index)
            wanted += (made := engine_on(resolved, plan.nodes, index, place))
            taken.update(_loads(resolved, made))
    for index in range(num_ranks):
        if f"rank-{index}" not in known:
            wanted.append(rank := rank_on(resolved, index, spare_node(resolved, plan.nodes, taken, index)))
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
