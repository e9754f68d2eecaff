"""Is an engine right, not merely up: one extraction, read back and looked at. Needs no torch.

Looks for what has been seen to go wrong: wrong shape, NaN, all zeros or one value everywhere (a cache block mismatch,
after which the loss still looks fine), the same layer twice, other tokens.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import httpx
import numpy as np
import numpy.typing as npt

from dspark_train.engine.extract import EngineRefused, HiddenShape, read_answer, request_body
from dspark_train.engine.marker import MARKER_BYTES, Marker, marker_key
from dspark_train.errors import SampleMissing, StoreError, WrongData
from dspark_train.store.protocol import Range, StoreClient

POLL_S = 0.01
_never_freed: list[npt.NDArray[np.uint8]] = []


def hidden_array(data: npt.NDArray[np.uint8], num_tokens: int, shape: HiddenShape) -> npt.NDArray[np.float32]:
    """Hidden states [num_tokens, layers, hidden] out of an object's first bytes, as float32 (exact for bfloat16)."""
    raw = data[: shape.layout(num_tokens).hidden_bytes]
    if shape.dtype == "bfloat16":  # the upper half of a float32
        values = (raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    else:
        values = raw.view(np.float32)
    return values.reshape(num_tokens, shape.num_layers, shape.hidden_size)


def check_hidden(hidden: npt.NDArray[np.float32]) -> None:
    """Raise WrongData where hidden states [tokens >= 2, layers, hidden] cannot be those of a language model."""
    if not np.isfinite(hidden).all():
        raise WrongData(f"{np.count_nonzero(~np.isfinite(hidden))} of {hidden.size} values are not finite")
    for layer in range(hidden.shape[1]):
        states = hidden[:, layer]
        if (states == states[:, :1]).all():
            raise WrongData(f"stored layer {layer} has one value in every place")
        if (states == states[:1]).all():
            raise WrongData(f"stored layer {layer} is the same for every token")
        if layer and (states == hidden[:, layer - 1]).all():
            raise WrongData(f"stored layers {layer - 1} and {layer} are the same")


def read_sample(
    store: StoreClient, key: str, num_tokens: int, shape: HiddenShape
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    """Hidden states [num_tokens, layers, hidden] and token ids [num_tokens] of an object. Raises SampleMissing."""
    layout = shape.layout(num_tokens)
    data = _read(store, key, layout.total_bytes)
    tokens = data[layout.tokens_offset : layout.tokens_offset + layout.tokens_bytes].view(np.int64)
    return hidden_array(data, num_tokens, shape), tokens


def read_marker(store: StoreClient, key: str) -> Marker:
    """Why there is no sample ``key``. Raises SampleMissing."""
    return Marker.decode(_read(store, marker_key(key), MARKER_BYTES).tobytes())


def wait_for(store: StoreClient, key: str, timeout_s: float) -> None:
    """Wait until the object is in the store.

    Raises WrongData with the text of its marker, SampleMissing after ``timeout_s``.
    """
    deadline_s = time.monotonic() + timeout_s
    while True:
        there, failed = store.exist([key, marker_key(key)])
        if failed:
            raise WrongData(f"the engine could not put {key}: {read_marker(store, key).text}")
        if there:
            return
        if time.monotonic() > deadline_s:
            raise SampleMissing(f"{key} was answered, and is not in the store after {timeout_s:g} s")
        time.sleep(POLL_S)


def probe(
    base_url: str,
    model: str,
    token_ids: Sequence[int],
    key: str,
    segment: str,
    shape: HiddenShape,
    store: StoreClient,
    timeout_s: float,
) -> None:
    """Have ``token_ids`` (two or more) extracted, and check what arrives. The object is removed again.

    Raises WrongData, EngineRefused, StoreError.
    """
    deadline_s = time.monotonic() + timeout_s
    try:
        body = request_body(model, token_ids, key, segment)
        answer = httpx.post(f"{base_url}/v1/completions", json=body, timeout=timeout_s, trust_env=False)
        read_answer(answer, token_ids, key, shape)
        wait_for(store, key, max(0.0, deadline_s - time.monotonic()))
        hidden, tokens = read_sample(store, key, len(token_ids), shape)
        if tokens.tolist() != list(token_ids):
            raise WrongData(f"{key} holds other tokens than were sent")
        check_hidden(hidden)
    except httpx.HTTPError as error:
        raise EngineRefused(f"{base_url} did not answer the probe: {type(error).__name__} {error}") from error
    finally:
        store.remove([key, marker_key(key)])


def _read(store: StoreClient, key: str, num_bytes: int) -> npt.NDArray[np.uint8]:
    data = np.empty(num_bytes, dtype=np.uint8)
    address = data.ctypes.data
    store.register(address, num_bytes)
    try:
        (problem,) = store.read(address, [Range(key, 0, 0, num_bytes)])
    except StoreError:
        _never_freed.append(data)  # a read that was given up may still write into it
        raise
    store.unregister(address)
    if problem:
        raise SampleMissing(f"{key}: {problem}")
    return data
