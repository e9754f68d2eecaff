"""From a resolved topology to everything that `launch` starts. Pure; `plan` prints what `launch` does."""

from __future__ import annotations

from dspark_train.errors import TopologyError
from dspark_train.plan.capacity import plan_capacity, store_problem
from dspark_train.plan.cautions import cautions, unresolved
from dspark_train.plan.commands import (
    controller_process,
    engine_processes,
    ledger_process,
    master_process,
    rank_on,
)
from dspark_train.plan.placement import planned_nodes, rank_nodes
from dspark_train.plan.spec import Plan, Predicted
from dspark_train.topology.resolve import Resolved


def build_plan(resolved: Resolved, max_nodes: int | None = None) -> Plan:
    """Place and describe every process that the run starts with.

    max_nodes: nodes that there are; None for as many as the topology describes.

    Raises TopologyError, at the line of the file, where the store cannot hold two steps and what engines have in
    flight, and where the topology needs more nodes than there are.
    """
    topology = resolved.topology
    nodes = planned_nodes(topology)
    num_engines, num_ranks = topology.engines.count.start, topology.trainers.ranks.start
    capacity = plan_capacity(resolved, num_engines, num_ranks)
    problems = [store_problem(resolved, capacity, num_engines, num_ranks)]
    if max_nodes is not None and len(nodes) > max_nodes:
        text = f"({topology.sets}) makes {len(nodes)} nodes of which there are {max_nodes}"
        problems.append(topology.problem("sets", text, "lower it, shrink nodes, or plan for more nodes"))
    found = [problem for problem in problems if problem]
    if found:
        raise TopologyError(found)
    processes = (
        controller_process(nodes),
        ledger_process(nodes),
        master_process(resolved, nodes),
        *(spec for index in range(1, num_engines + 1) for spec in engine_processes(resolved, nodes, index)),
        *(rank_on(resolved, index, node) for index, node in enumerate(rank_nodes(resolved, nodes, num_ranks))),
    )
    return Plan(
        topology=topology.name,
        nodes=nodes,
        processes=processes,
        capacity=capacity,
        predicted=Predicted(),
        warnings=tuple(cautions(resolved, nodes, processes, capacity)),
        unresolved=unresolved(resolved),
    )
