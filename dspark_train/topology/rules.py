"""What must hold between the values of a topology. Each rule is a function from a topology to findings. Pure.

The rules of nodes and placement are in `rules_nodes.py`, those of `draft.train` in `train_fields.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from dspark_train.topology import rules_nodes, train_fields, vllm_options
from dspark_train.topology.phrases import show
from dspark_train.topology.schema import Count, Topology
from dspark_train.topology.source import Finding

Rule = Callable[[Topology], Iterator[Finding]]

_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OWN_ENV = {
    "OMP_NUM_THREADS": "engines.cpu_threads",
    "VLLM_CPU_KVCACHE_SPACE": "engines.cpu_kv_cache_gib",
    "CUDA_VISIBLE_DEVICES": "nodes and engines.tensor_parallel",
    "VLLM_HOST_IP": "nodes",
    "MOONCAKE_LOCAL_HOSTNAME": "store",
}


def findings(topology: Topology, *, partial: bool = False) -> Iterator[Finding]:
    """Everything that the rules find.

    partial: some values were wrong and are absent from ``topology``. A rule that meets an absent value is passed over,
    since that value has been reported already.
    """
    for rule in RULES:
        try:
            yield from rule(topology)
        except AttributeError:
            if not partial:
                raise


def engine_counts(topology: Topology) -> Iterator[Finding]:
    return _count("engines.count", topology.engines.count)


def rank_counts(topology: Topology) -> Iterator[Finding]:
    return _count("trainers.ranks", topology.trainers.ranks)


def _count(key: str, count: Count) -> Iterator[Finding]:
    if count.max < count.min:
        text = f"({count.max}) is below {key}.min ({count.min})"
        yield Finding(f"{key}.max", text, "raise max or lower min")
    elif count.start > count.max:
        text = f"({count.start}) is above {key}.max ({count.max})"
        yield Finding(f"{key}.start", text, "lower start or raise max")
    elif count.start < count.min:
        text = f"({count.start}) is below {key}.min ({count.min})"
        yield Finding(f"{key}.start", text, "raise start or lower min")


def ranks_have_packs(topology: Topology) -> Iterator[Finding]:
    most, packs = topology.trainers.ranks.max, topology.data.step_packs
    if most > packs:
        text = f"({most}) is above data.step_packs ({packs})"
        remedy = "lower max or raise step_packs: a rank without a pack only waits"
        yield Finding("trainers.ranks.max", text, remedy)


def layers_in_order(topology: Topology) -> Iterator[Finding]:
    layers = list(topology.target.layers)
    negative = [(index, layer) for index, layer in enumerate(layers) if layer < 0]
    for index, layer in negative:
        yield Finding(f"target.layers[{index}]", f"({layer}) is below 0", "count layers from 1; 0 is the embedding")
    if layers != sorted(set(layers)) and not negative:
        yield Finding("target.layers", f"({show(layers)}) is not ascending", f"write {show(sorted(set(layers)))}")


def layers_are_read(topology: Topology) -> Iterator[Finding]:
    layers, algorithm = list(topology.target.layers), topology.draft.algorithm
    if not layers and algorithm != "mtp":
        yield Finding("target.layers", "names no layer", f"name those that {algorithm} reads: early, middle and late")
    elif layers and algorithm == "mtp":
        yield Finding(
            "target.layers", f"({show(layers)}) is not read by mtp", "write []: it reads the last layer alone"
        )


def run_has_an_end(topology: Topology) -> Iterator[Finding]:
    if topology.run.max_steps is None and topology.run.epochs is None:
        yield Finding("run", "has no end", "set run.max_steps, run.epochs or both")


def samples_fit_in_flight(topology: Topology) -> Iterator[Finding]:
    limit, seq_len = topology.engines.max_in_flight_tokens, topology.data.seq_len
    if limit < seq_len:
        text = f"({limit}) is below data.seq_len ({seq_len})"
        remedy = f"use {seq_len} or more: a sample of seq_len tokens could never be requested"
        yield Finding("engines.max_in_flight_tokens", text, remedy)


def leases_outlast_requests(topology: Topology) -> Iterator[Finding]:
    lease_s, request_s = topology.ledger.lease_s, topology.engines.request_timeout_s
    if lease_s <= request_s:
        text = f"({lease_s:g}) is not above engines.request_timeout_s ({request_s:g})"
        remedy = "raise lease_s: a sample would be handed out again while its request still runs"
        yield Finding("ledger.lease_s", text, remedy)


def devices_are_for_rdma(topology: Topology) -> Iterator[Finding]:
    if topology.store.device and topology.store.protocol != "rdma":
        text = f"({show(topology.store.device)}) has no effect with store.protocol {topology.store.protocol}"
        yield Finding("store.device", text, "set protocol: rdma, or remove device")


def files_have_a_place(topology: Topology) -> Iterator[Finding]:
    store, is_offline = topology.store, bool(topology.data.hidden_states)
    if store.protocol == "disk" and not store.path:
        yield Finding("store.path", "is missing", "name a directory that engines and ranks see: protocol is disk")
    elif store.protocol != "disk" and store.path:
        text = f"({show(store.path)}) has no effect with store.protocol {store.protocol}"
        yield Finding("store.path", text, "set protocol: disk, or remove path")
    if is_offline and store.protocol != "disk":
        text = f"({show(topology.data.hidden_states)}) does not go with store.protocol {store.protocol}"
        yield Finding(
            "data.hidden_states", text, "set store.protocol: disk and store.path: samples are read from files"
        )
    if is_offline and topology.engines.nodes_per_engine > 1:
        text = f"({topology.engines.nodes_per_engine}) has no effect with data.hidden_states"
        yield Finding("engines.nodes_per_engine", text, "remove it: there is no engine to spread")


def engine_env(topology: Topology) -> Iterator[Finding]:
    for name in topology.engines.env:
        key = f"engines.env.{name}"
        if name in _OWN_ENV:
            yield Finding(key, "is set by the plan", f"set {_OWN_ENV[name]} instead")
        elif not _ENV_NAME.fullmatch(name):
            yield Finding(key, "is not a name of an environment variable", "use letters, digits and _")


def engine_options(topology: Topology) -> Iterator[Finding]:
    return vllm_options.findings(topology.engines.vllm, topology.data.seq_len)


def train_settings(topology: Topology) -> Iterator[Finding]:
    return train_fields.findings(topology.draft.train, topology.draft.algorithm)


def train_on_cpu(topology: Topology) -> Iterator[Finding]:
    if not rules_nodes.num_gpus_anywhere(topology):
        yield from train_fields.cpu_findings(topology.draft.train, topology.draft.algorithm)


RULES: tuple[Rule, ...] = (
    engine_counts,
    rank_counts,
    ranks_have_packs,
    layers_in_order,
    layers_are_read,
    run_has_an_end,
    samples_fit_in_flight,
    leases_outlast_requests,
    devices_are_for_rdma,
    files_have_a_place,
    engine_env,
    engine_options,
    train_settings,
    train_on_cpu,
    *rules_nodes.RULES,
)
