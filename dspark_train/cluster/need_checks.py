"""What a topology needs of the machines, and whether its inputs are there."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from dspark_train.cluster.checks import GIB, Check, Need, Outcome
from dspark_train.data.dataset import Dataset
from dspark_train.errors import DataError
from dspark_train.plan.spec import Plan
from dspark_train.topology.resolve import DTYPE_BYTES, Resolved

ENGINE_BYTES = round(2.1 * GIB)
"""vLLM's processes of one engine on CPU, without weights and KV cache (3.1 GB measured with 1 GiB of cache)."""
RANK_BYTES = round(0.8 * GIB)
"""A rank without draft, ring and segment: Python, torch, speculators."""
REST_BYTES = GIB
"""Ray, controller, ledger and the store's master, on the first node."""
STORED_DTYPE_BYTES = 2
"""Weights on disk are bfloat16 as a rule."""


def need_of(resolved: Resolved, plan: Plan, runs_dir: Path) -> Need:
    """What the planned run needs of its fullest node; what is not known of the target counts as nothing."""
    topology, capacity = resolved.topology, plan.capacity
    per_node: defaultdict[str, int] = defaultdict(int)
    for process in plan.processes:
        per_node[process.node] += _memory_bytes(process.kind, resolved, plan)
    per_node[plan.process("controller").node] += REST_BYTES
    return Need(
        runs_dir=runs_dir,
        memory_bytes=max(per_node.values()),
        disk_bytes=(capacity.draft_state_bytes or 0) * (topology.checkpoint.keep + 1) or None,
        num_gpus=max(node.num_gpus for node in plan.nodes),
        num_nodes=len(plan.nodes),
        target=topology.target.model,
        target_is_readable=resolved.layer_ids is not None and resolved.bytes_per_token is not None,
        dataset=Path(topology.data.path),
        nodes_per_engine=topology.engines.nodes_per_engine,
        store_protocol=topology.store.protocol,
        store_devices=topology.store.device,
    )


def _memory_bytes(kind: str, resolved: Resolved, plan: Plan) -> int:
    capacity, topology = plan.capacity, resolved.topology
    on_cpu = resolved.device == "cpu"
    if kind == "engine" and resolved.mode != "offline":
        weights = (capacity.target_weight_bytes or 0) * DTYPE_BYTES[resolved.hidden_dtype] // STORED_DTYPE_BYTES
        return ENGINE_BYTES + (weights + topology.engines.cpu_kv_cache_gib * GIB if on_cpu else 0)
    if kind == "rank":
        draft = capacity.draft_state_bytes or 0
        segment_bytes = resolved.segment_bytes if resolved.mode == "online" else 0
        return RANK_BYTES + segment_bytes + (capacity.ring_bytes or 0) + (draft if on_cpu else 0)
    return 0


def check_target(need: Need) -> Outcome:
    """The target's config can be read here."""
    if not need.target:
        return Outcome("ok", "no topology given")
    if not need.target_is_readable:
        return Outcome("failed", f"the config.json of {need.target} cannot be read here, and target.shape is not set")
    return Outcome("ok", f"{need.target} is here, or its shape is given")


def check_dataset(need: Need) -> Outcome:
    """The training set is prepared."""
    if need.dataset is None:
        return Outcome("ok", "no topology given")
    try:
        dataset = Dataset.open(need.dataset)
    except DataError as error:
        first = error.problems[0]
        return Outcome("failed", f"{first.file}: {first.text}", first.remedy)
    return Outcome("ok", f"{need.dataset} holds {len(dataset)} samples")


def check_nodes(need: Need) -> Outcome:
    """A topology of several nodes needs a cluster: what is said here is of this machine alone."""
    if need.num_nodes > 1:
        return Outcome("warning", f"the topology needs {need.num_nodes} nodes; only this machine was looked at")
    return Outcome("ok", "one machine is enough")


NEED_CHECKS = (
    Check("target", check_target, "unpack or download it: dspark-train prepare --topology FILE --unpack-target"),
    Check("training set", check_dataset, "make it: dspark-train prepare --topology FILE"),
    Check("nodes", check_nodes, "look at all of them: dspark-train doctor --address HOST:PORT of the Ray head"),
)
