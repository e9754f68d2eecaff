"""What the target's own files say of it: read as JSON, in milliseconds, without torch or transformers.

Only :func:`check_available` asks the network.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dspark_train.data.target_identity import read_identity
from dspark_train.errors import DataError, Problem, UsageError
from dspark_train.topology.facts import TargetFacts

HUB_TIMEOUT_S = 10.0
_KEYS: dict[str, tuple[str, ...]] = {
    "num_layers": ("num_hidden_layers", "n_layer", "num_layers"),
    "hidden_size": ("hidden_size", "n_embd", "d_model"),
    "vocab_size": ("vocab_size",),
    "intermediate_size": ("intermediate_size",),
    "num_attention_heads": ("num_attention_heads", "n_head"),
    "num_key_value_heads": ("num_key_value_heads",),
    "head_dim": ("head_dim",),
    "max_position_embeddings": ("max_position_embeddings", "n_positions"),
}
_NESTED = ("text_config", "llm_config", "language_config")
_INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
_WEIGHTS = ("model*.safetensors", "pytorch_model*.bin")


def read_target_facts(model: str) -> TargetFacts:
    """Read the facts of a model directory, or of a hub id from the local Hugging Face cache.

    What is not there stays None: a target that is still to be downloaded or unpacked has no facts yet. Raises DataError
    where its config.json is there and cannot be read.
    """
    local = Path(model).expanduser()
    directory = model_directory(model)
    if directory is None or not (directory / "config.json").is_file():
        return TargetFacts()
    whole = _read(directory / "config.json")
    config = _text_config(whole)
    figures = {name: _figure(config, keys) for name, keys in _KEYS.items()}
    is_local = local.is_dir()
    return TargetFacts(
        **figures,
        weight_bytes=_weight_bytes(directory),
        is_local=is_local,
        path=str(local.resolve()) if is_local else "",
        source=str(directory / "config.json"),
        architectures=_names(whole.get("architectures")),
        identity=read_identity(directory),
    )


def check_available(model: str) -> None:
    """See that a target without facts can be had from its hub: vLLM would try for minutes. Raises UsageError."""
    remedy = "correct target.model, download it, or give --unpack-target for the quickstart's"
    here = f"the target {model} is neither a model directory nor in the Hugging Face cache"
    if model.startswith(("/", ".", "~")) or os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "TRUE", "YES", "ON"):
        raise UsageError(f"{here}: {remedy}")
    if os.environ.get("VLLM_USE_MODELSCOPE"):
        return
    # Here, as `plan` is to answer in half a second, of which httpx would take a third to import.
    import httpx
    from huggingface_hub import constants, get_token

    token = get_token()
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        reply = httpx.get(f"{constants.ENDPOINT}/api/models/{model}", headers=headers, timeout=HUB_TIMEOUT_S)
    except httpx.TransportError as error:
        raise UsageError(f"{here}, and its hub cannot be reached ({error}): {remedy}") from error
    if reply.status_code in (httpx.codes.UNAUTHORIZED, httpx.codes.NOT_FOUND):
        raise UsageError(f"{here}, and its hub shows none of that name (HTTP {reply.status_code}): {remedy}")


def model_directory(model: str) -> Path | None:
    """Where a model's files lie on this machine: its directory, or its place in the Hugging Face cache."""
    local = Path(model).expanduser()
    return local if local.is_dir() else _snapshot(model)


def is_hub_id(model: str) -> bool:
    """Whether it can be a name on a hub: OWNER/NAME, and no directory here."""
    return model.count("/") == 1 and not model.startswith((".", "/", "~")) and not Path(model).is_dir()


def _snapshot(model: str) -> Path | None:
    """The newest snapshot of a hub id in the cache of huggingface_hub, whose layout and variables are followed here."""
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    cache = Path(os.environ.get("HF_HUB_CACHE") or home / "hub").expanduser()
    repository = cache / f"models--{model.replace('/', '--')}"
    try:
        revision = (repository / "refs" / "main").read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return None
    return repository / "snapshots" / revision


def _text_config(config: dict[str, Any]) -> Mapping[str, Any]:
    """The language model's part of a config that also describes vision or speech."""
    for key in _NESTED:
        if isinstance(config.get(key), dict):
            return {**config, **config[key]}
    return config


def _figure(config: Mapping[str, Any], keys: tuple[str, ...]) -> int | None:
    value = next((config[key] for key in keys if config.get(key) is not None), None)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _names(value: Any) -> tuple[str, ...]:
    return tuple(map(str, value)) if isinstance(value, list) else ()


def _weight_bytes(directory: Path) -> int | None:
    for name in _INDEXES:
        if (directory / name).is_file():
            metadata = _read(directory / name).get("metadata")
            size = metadata.get("total_size") if isinstance(metadata, dict) else None
            if isinstance(size, int | float):
                return int(size)
    for pattern in _WEIGHTS:
        sizes = [file.stat().st_size for file in directory.glob(pattern) if file.is_file()]
        if sizes:
            return sum(sizes)
    return None


def _read(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError, OSError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not JSON"
        problem = Problem(str(path), 0, "", f"cannot be read: {reason}", "get the model again, or correct target.model")
        raise DataError([problem]) from error
    return value if isinstance(value, dict) else {}
