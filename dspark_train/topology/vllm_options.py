"""What `engines.vllm` may hold: any option of `vllm serve` but those that follow from other keys. Pure.

vLLM itself knows whether an option exists; the engine's log shows its answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from dspark_train.topology.phrases import show
from dspark_train.topology.source import Finding

RESERVED = {
    "model": "target.model",
    "served_model_name": "target.model",
    "trust_remote_code": "target.trust_remote_code",
    "dtype": "target.dtype",
    "tensor_parallel_size": "engines.tensor_parallel",
    "nnodes": "engines.nodes_per_engine",
    "node_rank": "engines.nodes_per_engine",
    "headless": "engines.nodes_per_engine",
    "kv_transfer_config": "store",
    "speculative_config": "target.layers",
    "spec_method": "target.layers",
    "spec_model": "target.layers",
    "spec_tokens": "target.layers",
}
"""Option -> the key of the topology that sets it."""

UNSUPPORTED = {
    "host": "the plan binds each engine to its node",
    "port": "the plan reserves a port for each engine",
    "uds": "the feeder reaches its engine by host and port",
    "master_addr": "the plan names the first node of each engine",
    "master_port": "the plan reserves a port for each engine",
    "config": "write the options here",
    "api_key": "an engine answers only its own node",
    "ssl_keyfile": "an engine answers only its own node",
    "ssl_certfile": "an engine answers only its own node",
    "root_path": "the feeder asks for /v1/completions",
    "pipeline_parallel_size": "the layers of one sample would lie in several processes; use engines.tensor_parallel",
    "data_parallel_size": "use engines.count for more replicas",
    "distributed_executor_backend": "engines start their own processes",
    "runner": "extraction generates one token",
    "convert": "extraction generates one token",
    "kv_transfer_params": "the feeder sends them",
}
"""Option -> why it cannot be given."""

_NUMBERS = ("max_model_len", "max_num_batched_tokens", "max_num_seqs")
"""Options that the plan itself reads, or that often have a unit by mistake."""


def findings(options: Mapping[str, Any], seq_len: int) -> Iterator[Finding]:
    """What is wrong with the options. A request is one sample of up to ``seq_len`` tokens, plus one generated token."""
    for name, value in options.items():
        key = f"engines.vllm.{name}"
        plain = name.lstrip("-").replace("-", "_")
        if plain in RESERVED:
            yield Finding(key, "follows from another key", f"remove it and set {RESERVED[plain]}")
        elif plain in UNSUPPORTED:
            yield Finding(key, "cannot be given", f"remove it: {UNSUPPORTED[plain]}")
        elif plain.startswith("no_"):
            yield Finding(key, "is a negated option", f"write {plain[3:]}: false")
        elif plain != name:
            yield Finding(key, "is not written with underscores", f"write {plain}")
        elif name in _NUMBERS and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
            yield Finding(key, f"({show(value)}) is not a whole number above 0", "write one, or remove the line")
        elif name == "max_model_len" and value <= seq_len:
            text = f"({value}) is not above data.seq_len ({seq_len})"
            yield Finding(key, text, f"use {seq_len + 1} or more: a sample, and the one token that vLLM generates")
