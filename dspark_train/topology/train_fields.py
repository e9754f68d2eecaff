"""`draft.train`: fields of speculators' TrainConfig, checked against a snapshot of its own schema. Pure.

The snapshot (`train_fields.json`) is made by tests/topology/snapshot_train_fields.py, and a test compares it with the
installed speculators. Importing that schema itself would import torch, which takes seconds.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal, Optional

from dspark_train.topology import train_rules
from dspark_train.topology.phrases import phrase, show, unknown_key
from dspark_train.topology.source import Finding

OWNED = {
    "speculator_type": "draft.algorithm",
    "verifier_name_or_path": "target.model",
    "trust_remote_code": "target.trust_remote_code",
    "target_layer_ids": "target.layers",
    "hidden_states_dtype": "target.dtype",
    "hidden_states_backend": "store",
    "data_path": "data.path",
    "token_freq_path": "data.path",
    "d2t_path": "data.path",
    "t2d_path": "data.path",
    "total_seq_len": "data.seq_len",
    "train_data_ratio": "data.validation_frac",
    "num_workers": "trainers.prefetch_steps",
    "prefetch_factor": "trainers.prefetch_steps",
    "fsdp_shard": "trainers.sharding",
    "vllm_endpoint": "engines",
    "request_timeout": "engines.request_timeout_s",
    "on_missing": "ledger.max_attempts",
    "on_generate": "ledger.max_attempts",
    "max_retries": "ledger.max_attempts",
    "generation_validation_retries": "ledger.max_attempts",
    "max_consecutive_generation_failures": "ledger.max_failed_frac",
    "seed": "run.seed",
    "max_steps": "run.max_steps",
    "epochs": "run.epochs",
    "checkpoint_freq": "checkpoint.every_steps",
    "save_best": "checkpoint.keep",
    "run_name": "name",
    "hidden_states_path": "store",
}
"""Field -> the key of the topology that decides it."""

UNUSED = {
    "dry_run": "use `dspark-train plan`",
    "no_resume_from_checkpoint": "a run resumes with `dspark-train launch --resume` alone",
    "log_freq": "every step is logged",
    "save_path": "checkpoints are in the run's directory",
    "logger": "metrics go to metrics.jsonl and TensorBoard",
    "log_dir": "logs are in the run's directory",
}
"""Field -> what to do instead; nothing in the topology stands for it."""

_BOUNDS: dict[str, dict[str, float]] = {
    "num_layers": {"minimum": 1},
    "block_size": {"minimum": 2},
    "draft_vocab_size": {"minimum": 1},
    "max_anchors": {"minimum": 1},
    "markov_rank": {"minimum": 0},
    "lr": {"exclusiveMinimum": 0},
    "muon_lr": {"exclusiveMinimum": 0},
    "weight_decay": {"minimum": 0},
    "muon_weight_decay": {"minimum": 0},
    "muon_momentum": {"minimum": 0, "exclusiveMaximum": 1},
    "scheduler_warmup_steps": {"minimum": 0},
    "scheduler_warmup_ratio": {"minimum": 0, "maximum": 1},
    "scheduler_total_steps": {"minimum": 1},
    "sliding_window": {"minimum": 1},
}
"""Bounds that follow from a field's meaning and that speculators' schema leaves open."""

_LIMITS = {"minimum": "ge", "exclusiveMinimum": "gt", "maximum": "le", "exclusiveMaximum": "lt"}
_TYPES: dict[str, Any] = {"integer": int, "number": float, "boolean": bool, "string": str, "null": type(None)}


@cache
def snapshot() -> dict[str, Any]:
    """The snapshot: ``fields`` (name -> group and JSON schema), ``algorithms`` (group -> users), ``losses``, ..."""
    text = Path(__file__).with_name("train_fields.json").read_text(encoding="utf-8")
    loaded: dict[str, Any] = json.loads(text)
    for name, bounds in _BOUNDS.items():
        loaded["fields"][name].update(bounds)
    return loaded


def settable() -> dict[str, dict[str, Any]]:
    """Every field that `draft.train` may hold: name -> group and JSON schema."""
    fields = snapshot()["fields"]
    return {name: schema for name, schema in fields.items() if name not in OWNED and name not in UNUSED}


def findings(train: Mapping[str, Any], algorithm: str) -> Iterator[Finding]:
    """What is wrong with ``train`` for a draft of ``algorithm``."""
    known = settable()
    good = {}
    for name, value in train.items():
        refusals = list(_refused(name, algorithm, known)) or list(_mistyped(name, value, known[name]))
        yield from refusals
        if not refusals:
            good[name] = value
    yield from train_rules.findings(good, algorithm, snapshot())


def cpu_defaults(algorithm: str) -> dict[str, str]:
    """What a draft needs on CPU. The fused losses are Triton kernels, and flex attention has no backward pass there."""
    return {"loss_implementation": "eager"} | ({} if algorithm == "mtp" else {"draft_attn_impl": "sdpa"})


def cpu_findings(train: Mapping[str, Any], algorithm: str) -> Iterator[Finding]:
    """What of ``train`` does not run on CPU."""
    for name, only in cpu_defaults(algorithm).items():
        if train.get(name) in ("fused", "simple_flex_attention"):
            text = f"({show(train[name])}) does not run on CPU"
            yield Finding(f"draft.train.{name}", text, f"use {only}, or remove the line")


def _refused(name: str, algorithm: str, known: Mapping[str, Any]) -> Iterator[Finding]:
    key = f"draft.train.{name}"
    if name in OWNED or name.startswith("mooncake_"):
        yield Finding(key, "follows from another key", f"remove it and set {OWNED.get(name, 'store')}")
    elif name in UNUSED:
        yield Finding(key, "has no effect here", f"remove it: {UNUSED[name]}")
    elif name not in known:
        yield unknown_key(key, known)
    else:
        users = snapshot()["algorithms"].get(known[name]["group"], [algorithm])
        if algorithm not in users:
            yield Finding(key, f"is a field of {' and '.join(users)}, not of {algorithm}", "remove it")


def _mistyped(name: str, value: Any, schema: Mapping[str, Any]) -> Iterator[Finding]:
    from pydantic import ValidationError, create_model

    model = create_model("train", **{name: (_python_type(schema), ...)})  # type: ignore[call-overload]
    try:
        model.model_validate_json(json.dumps({name: value}), strict=True)
    except ValidationError as error:
        first = phrase(error.errors()[0], model)
        yield first._replace(key=f"draft.train.{first.key}")


def _python_type(schema: Mapping[str, Any]) -> Any:
    """The Python type of a JSON schema of the few shapes that TrainConfig has."""
    from pydantic import Field

    if "anyOf" in schema:
        (inner,) = [one for one in schema["anyOf"] if one.get("type") != "null"]
        return Optional[_python_type({**inner, **{k: schema[k] for k in _LIMITS if k in schema}})]  # noqa: UP045
    if "enum" in schema or "const" in schema:
        return Literal[tuple(schema.get("enum", [schema.get("const")]))]
    if schema["type"] == "array":
        return list[_python_type(schema["items"])]  # type: ignore[misc]
    from typing import Annotated

    limits = {_LIMITS[name]: schema[name] for name in _LIMITS if name in schema}
    plain = _TYPES[schema["type"]]
    return (
        Annotated[plain, Field(allow_inf_nan=False, **limits)] if plain is float else Annotated[plain, Field(**limits)]
    )
