"""What must hold between the nodes of a topology and what is to run on them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from dspark_train.topology.schema import NodeGroup, Topology
from dspark_train.topology.source import Finding

_MOST_NODES = 10_000
"""A plan names every node; more are a slip of the keyboard."""


def groups(topology: Topology) -> dict[str, NodeGroup]:
    """The groups of nodes that are there, by name."""
    nodes = topology.nodes
    named = {"shared": nodes.shared, "inference": nodes.inference, "training": nodes.training}
    return {name: group for name, group in named.items() if group is not None}


def num_gpus_anywhere(topology: Topology) -> int:
    """GPUs of a node, at most; 0 where all nodes compute on CPU."""
    return max((group.gpus for group in groups(topology).values()), default=0)


def engine_gpus(topology: Topology) -> int:
    """GPUs that an engine takes on each of its nodes; none where hidden states are read from files."""
    return 0 if topology.data.hidden_states else topology.engines.tensor_parallel // topology.engines.nodes_per_engine


def num_engine_places(topology: Topology) -> int:
    """Engines that the GPUs of all sets hold, if nothing else is there. An engine keeps to the nodes of one set."""
    group = topology.nodes.shared or topology.nodes.inference
    assert group is not None
    per_set = group.count // topology.engines.nodes_per_engine * (group.gpus // max(engine_gpus(topology), 1))
    return topology.sets * per_set


def num_training_gpus(topology: Topology) -> int:
    """GPUs of all sets that ranks may use, if nothing else is there."""
    group = topology.nodes.shared or topology.nodes.training
    assert group is not None
    return topology.sets * group.count * group.gpus


def kinds_of_nodes(topology: Topology) -> Iterator[Finding]:
    there = set(groups(topology))
    remedy = "describe shared alone, or inference and training"
    if not there:
        yield Finding("nodes", "describes no nodes", remedy)
    elif "shared" in there and len(there) > 1:
        others = " and ".join(f"nodes.{name}" for name in ("inference", "training") if name in there)
        yield Finding("nodes.shared", f"stands beside {others}", remedy)
    elif len(there) == 1 and "shared" not in there:
        absent = ({"inference", "training"} - there).pop()
        yield Finding("nodes", f"has no {absent} nodes beside {there.pop()}", remedy)


def cluster_is_of_this_world(topology: Topology) -> Iterator[Finding]:
    num_nodes = topology.sets * sum(group.count for group in groups(topology).values())
    if num_nodes > _MOST_NODES:
        yield Finding("sets", f"({topology.sets}) makes {num_nodes} nodes", f"stay below {_MOST_NODES} nodes")


def gpus_on_both_sides(topology: Topology) -> Iterator[Finding]:
    inference, training = topology.nodes.inference, topology.nodes.training
    if inference and training and bool(inference.gpus) != bool(training.gpus):
        text = f"({training.gpus}) does not go with nodes.inference.gpus ({inference.gpus})"
        yield Finding("nodes.training.gpus", text, "give both kinds of nodes GPUs, or neither")


def engine_divides_over_nodes(topology: Topology) -> Iterator[Finding]:
    size, spans = topology.engines.tensor_parallel, topology.engines.nodes_per_engine
    if size % spans:
        text = f"({size}) is not a multiple of engines.nodes_per_engine ({spans})"
        yield Finding("engines.tensor_parallel", text, "give each node of an engine the same share")


def engine_fits_a_set(topology: Topology) -> Iterator[Finding]:
    if not _well_formed(topology):
        return
    name = "shared" if topology.nodes.shared else "inference"
    group, spans = groups(topology)[name], topology.engines.nodes_per_engine
    if spans > group.count:
        text = f"({spans}) is above nodes.{name}.count ({group.count})"
        yield Finding("engines.nodes_per_engine", text, "an engine keeps to one set: lower it or raise count")
    if group.gpus and engine_gpus(topology) > group.gpus:
        size = topology.engines.tensor_parallel
        each = f" over engines.nodes_per_engine ({spans})" if spans > 1 else ""
        text = f"({size}){each} takes {engine_gpus(topology)} GPUs of a node that has {group.gpus}"
        yield Finding("engines.tensor_parallel", text, "lower it or spread the engine over more nodes")


def start_fits_the_nodes(topology: Topology) -> Iterator[Finding]:
    if not num_gpus_anywhere(topology) or any(gpus_on_both_sides(topology)):
        return
    if not _well_formed(topology) or any(engine_fits_a_set(topology)):
        return
    engines, ranks = topology.engines.count.start, topology.trainers.ranks.start
    places, gpus = num_engine_places(topology), num_training_gpus(topology)
    if engines > places:
        remedy = "lower it or describe more nodes"
        yield Finding("engines.count.start", f"({engines}) is above the {places} that the nodes hold", remedy)
        return
    each = engine_gpus(topology) * topology.engines.nodes_per_engine
    left = gpus - (engines * each if topology.nodes.shared else 0)
    if ranks > left:
        beside = f" left beside {engines} engines" if topology.nodes.shared else ""
        text = f"({ranks}) is above the {left} GPUs{beside}"
        yield Finding("trainers.ranks.start", text, "lower it or describe more nodes: a rank takes one GPU")


def _well_formed(topology: Topology) -> bool:
    return not any(kinds_of_nodes(topology)) and not any(engine_divides_over_nodes(topology))


RULES: tuple[Callable[[Topology], Iterator[Finding]], ...] = (
    kinds_of_nodes,
    cluster_is_of_this_world,
    gpus_on_both_sides,
    engine_divides_over_nodes,
    engine_fits_a_set,
    start_fits_the_nodes,
)
