"""One extraction over HTTP: the request's body, and the check of what the engine says it will put. No store here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import httpx

from dspark_train.errors import DSparkError, WrongData
from dspark_train.store.protocol import SampleLayout
from dspark_train.topology.resolve import DTYPE_BYTES, Resolved

MANIFEST_VERSION = 1
NUM_CHARS_SHOWN = 300


class EngineRefused(DSparkError):
    """The engine answered with an error, or not at all."""


class RequestRejected(EngineRefused):
    """The engine is well, and will not have this request."""


@dataclass(frozen=True, slots=True)
class HiddenShape:
    """What the hidden states of one token are like."""

    num_layers: int
    hidden_size: int
    dtype: Literal["float32", "bfloat16"]

    @classmethod
    def of(cls, resolved: Resolved) -> HiddenShape:
        """As a run has resolved it. Raises WrongData where the target's width is unknown."""
        if resolved.facts.hidden_size is None:
            raise WrongData("the target's hidden size is unknown: give target.shape.hidden_size in the topology")
        return cls(resolved.num_layers_stored, resolved.facts.hidden_size, resolved.hidden_dtype)

    def layout(self, num_tokens: int) -> SampleLayout:
        """Layout of a sample's object."""
        return SampleLayout(num_tokens, self.num_layers * self.hidden_size * DTYPE_BYTES[self.dtype])


def request_body(model: str, token_ids: Sequence[int], key: str, segment: str) -> dict[str, Any]:
    """The body of POST /v1/completions that has ``token_ids`` extracted to ``key`` in ``segment``."""
    return {
        "model": model,
        "prompt": list(token_ids),
        "max_tokens": 1,
        "temperature": 0.0,
        "return_token_ids": True,
        "kv_transfer_params": {"key": key, "segment": segment},
    }


def read_answer(answer: httpx.Response, token_ids: Sequence[int], key: str, shape: HiddenShape) -> int:
    """Check an answer against what was asked for; returns the bytes of the object that is, or will be, in the store.

    Raises EngineRefused or RequestRejected for an HTTP error, WrongData naming what differs.
    """
    if answer.status_code != httpx.codes.OK:
        kind = RequestRejected if answer.is_client_error else EngineRefused
        raise kind(f"the engine answered {answer.status_code}: {answer.text[:NUM_CHARS_SHOWN]}")
    try:
        fields = answer.json()
        echoed = fields["choices"][0]["prompt_token_ids"]
        manifest = fields["kv_transfer_params"]
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise WrongData(f"{key}: the answer lacks {error}: {answer.text[:NUM_CHARS_SHOWN]}") from error
    if echoed != list(token_ids):
        raise WrongData(f"{key}: the engine ran other tokens than it was given ({len(echoed or ())} of them)")
    return check_manifest(manifest, len(token_ids), key, shape)


def tensors_of(num_tokens: int, shape: HiddenShape) -> dict[str, dict[str, Any]]:
    """Where the tensors of a sample's object lie, as a manifest tells it."""
    layout = shape.layout(num_tokens)
    return {
        "hidden_states": {
            "shape": [num_tokens, shape.num_layers, shape.hidden_size],
            "dtype": f"torch.{shape.dtype}",
            "nbytes": layout.hidden_bytes,
            "offset": 0,
        },
        "token_ids": {
            "shape": [num_tokens],
            "dtype": "torch.int64",
            "nbytes": layout.tokens_bytes,
            "offset": layout.tokens_offset,
        },
    }


def check_manifest(manifest: Mapping[str, Any] | None, num_tokens: int, key: str, shape: HiddenShape) -> int:
    """Compare the manifest, field by field, with the one layout that we read. Returns the object's bytes."""
    if not manifest:
        raise WrongData(f"{key}: the engine puts nothing: is DSparkConnector its kv_connector?")
    layout = shape.layout(num_tokens)
    parts = tensors_of(num_tokens, shape)
    tensors = manifest.get("tensors") or {}
    wanted = {"handle": key, "version": MANIFEST_VERSION, **parts}
    found = {**manifest, "hidden_states": tensors.get("hidden_states"), "token_ids": tensors.get("token_ids")}
    total_bytes = (manifest.get("metadata") or {}).get("total_aligned_bytes")
    for name, value in [*wanted.items(), ("total_aligned_bytes", layout.total_bytes)]:
        seen = total_bytes if name == "total_aligned_bytes" else found.get(name)
        if seen != value:
            raise WrongData(f"{key}: {name} is {seen}, and should be {value}")
    return layout.total_bytes
