"""What a plan cannot know, and what may disappoint: sentences, not refusals. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dspark_train.plan.capacity import plan_capacity, store_problem
from dspark_train.plan.spec import UNRESOLVED, Capacity, PlannedNode, ProcessSpec
from dspark_train.topology.resolve import GIB, Resolved
from dspark_train.topology.rules_nodes import engine_gpus, num_engine_places, num_training_gpus

_TYPICAL_RAM_GIB = {"cpu": 32, "cuda": 1024}
"""Host memory of a node of the kind: the node itself is not seen by a plan."""
_LEAST_PREFILL_TOKENS = 2048
"""The smallest max_num_batched_tokens that vLLM chooses by itself."""
UNMEASURED = "nothing has been measured yet: throughput, bottleneck and link bandwidth are not predicted"


def unresolved(resolved: Resolved) -> tuple[str, ...]:
    """What must be known before anything can start."""
    missing = []
    if resolved.layer_ids is None:
        missing.append(
            f"the target's number of layers is not known here: the id of its last layer is {UNRESOLVED} in the argv of "
            "the engines; have the target's config.json at hand, or set target.shape.num_layers"
        )
    if resolved.bytes_per_token is None:
        missing.append(
            "the target's hidden size is not known here, so no bytes are planned and the store is not checked: have "
            "the target's config.json at hand, or set target.shape.hidden_size"
        )
    return tuple(missing)


def cautions(
    resolved: Resolved, nodes: Sequence[PlannedNode], processes: Sequence[ProcessSpec], capacity: Capacity
) -> Iterator[str]:
    """Every caution of a plan, `unresolved` included."""
    yield from unresolved(resolved)
    if resolved.facts.source == "topology":
        yield f"config.json of {resolved.topology.target.model} cannot be read here: its figures are target.shape's"
    if resolved.mode != "offline":
        yield from _weights(resolved)
        yield from _chunks(resolved)
    yield from _files(resolved, nodes)
    yield from _growth(resolved, nodes)
    yield from _smallest_store(resolved, capacity)
    yield from _memory(resolved, processes)
    yield UNMEASURED


def _files(resolved: Resolved, nodes: Sequence[PlannedNode]) -> Iterator[str]:
    if resolved.mode != "online" and len(nodes) > 1:
        yield f"store.path ({resolved.topology.store.path}) must be one directory that all {len(nodes)} nodes see"


def _weights(resolved: Resolved) -> Iterator[str]:
    if resolved.device == "cpu":
        return
    weights, size = resolved.facts.weight_bytes, resolved.topology.engines.tensor_parallel
    if weights is None:
        yield "the size of the target's weights is not known here, so not whether they fit: set target.shape.weight_gib"
    else:
        each = weights / size / GIB
        yield f"the target's weights take {each:.1f} GiB of each of an engine's {size} GPUs; their memory is not known"


def _chunks(resolved: Resolved) -> Iterator[str]:
    options, seq_len = resolved.topology.engines.vllm, resolved.topology.data.seq_len
    budget = options.get("max_num_batched_tokens")
    if options.get("enable_chunked_prefill") is False or (budget or _LEAST_PREFILL_TOKENS) > seq_len:
        return
    now = f"is {budget}" if budget else "is left to vLLM"
    yield (
        f"engines.vllm.max_num_batched_tokens {now}: vLLM may prefill samples of {seq_len} tokens in chunks, and some "
        f"models' hidden states were reported to differ then; set it to {seq_len + 1} or more"
    )


def _growth(resolved: Resolved, nodes: Sequence[PlannedNode]) -> Iterator[str]:
    if resolved.device == "cpu":
        return
    topology = resolved.topology
    most_engines, most_ranks = num_engine_places(topology), num_training_gpus(topology)
    if topology.nodes.shared:
        most_ranks -= topology.engines.count.min * engine_gpus(topology) * topology.engines.nodes_per_engine
        free = num_training_gpus(topology) - topology.trainers.ranks.min
        most_engines = min(most_engines, free // topology.engines.tensor_parallel)
    for key, maximum, most in (
        ("engines.count.max", topology.engines.count.max, most_engines),
        ("trainers.ranks.max", topology.trainers.ranks.max, most_ranks),
    ):
        if maximum > most:
            yield f"{key} ({maximum}) is above the {most} that these {len(nodes)} nodes hold: more needs more nodes"


def _smallest_store(resolved: Resolved, capacity: Capacity) -> Iterator[str]:
    """The bounds of the pools allow a store that is smaller, and engines that are more, than at the start."""
    engines, ranks = resolved.topology.engines.count.max, resolved.topology.trainers.ranks.min
    corner = plan_capacity(resolved, engines, ranks)
    if capacity.store_needed_bytes and store_problem(resolved, corner, engines, ranks):
        needed, has = (corner.store_needed_bytes or 0) / GIB, corner.store_bytes / GIB
        yield (
            f"scaled to {engines} engines and {ranks} ranks, the store would have {has:.2f} GiB of the {needed:.2f} "
            "GiB that it needs: raise trainers.ranks.min or store.segment_gib to scale that far"
        )


def _memory(resolved: Resolved, processes: Sequence[ProcessSpec]) -> Iterator[str]:
    if resolved.mode != "online":
        return
    typical = _TYPICAL_RAM_GIB[resolved.device]
    ranks = [process.node for process in processes if process.kind == "rank"]
    most = max(ranks.count(node) for node in ranks)
    gib = most * resolved.segment_bytes / GIB
    if gib > typical / 2:
        yield f"the {most} segments of one node take {gib:g} GiB: more than half of a typical node's {typical} GiB"
