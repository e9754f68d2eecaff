"""The file of one sample: safetensors, as vLLM's ExampleHiddenStatesConnector writes it and speculators reads it.

Two tensors, token_ids int64 [tokens] and hidden_states [tokens, layers, hidden]. It is written beside its name and
renamed, so one that exists is whole. Whoever reads ranges of it sees the layout of `SampleLayout`, as in any store.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dspark_train.errors import WrongData
from dspark_train.store.protocol import ALIGN_BYTES

SUFFIX = ".safetensors"
PARTIAL = ".partial"
LENGTH_BYTES = 8
MAX_HEADER_BYTES = 1 << 20
NAMES = {"float32": "F32", "bfloat16": "BF16"}
"""A type's name in the header; a run knows no others."""

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Region:
    """Bytes ``start .. start + num_bytes`` of an object lie at ``offset`` of its file."""

    start: int
    num_bytes: int
    offset: int


@dataclass(frozen=True, slots=True)
class SampleFile:
    """What the header says. dtype: "F32" or "BF16"; total_bytes: of the object that the file stands for."""

    shape: tuple[int, ...]
    dtype: str
    regions: tuple[Region, Region]

    @property
    def total_bytes(self) -> int:
        tokens = self.regions[1]
        return _aligned(tokens.start + tokens.num_bytes)


def write_sample(path: Path, hidden: Bytes, shape: Sequence[int], dtype: str, token_ids: npt.NDArray[np.int64]) -> None:
    """Write a sample's file. hidden: its bytes, of ``shape`` [tokens, layers, hidden] and type ``dtype``. OSError."""
    ids = np.ascontiguousarray(token_ids, dtype="<i8").view(np.uint8)
    ends = ids.nbytes, ids.nbytes + hidden.nbytes
    fields = {
        "token_ids": {"dtype": "I64", "shape": [len(token_ids)], "data_offsets": [0, ends[0]]},
        "hidden_states": {"dtype": NAMES[dtype], "shape": list(shape), "data_offsets": list(ends)},
    }
    text = json.dumps(fields, separators=(",", ":")).encode()
    text = text.ljust(_aligned(LENGTH_BYTES + len(text)) - LENGTH_BYTES)
    write_whole(path, [len(text).to_bytes(LENGTH_BYTES, "little"), text, ids.data, hidden.data])


def write_whole(path: Path, parts: Sequence[bytes | memoryview]) -> None:
    """Write a file beside its name and rename it; nothing is left of one that fails. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f"{path.name}.{os.getpid()}-{id(parts):x}{PARTIAL}")
    try:
        with beside.open("wb", buffering=0) as file:
            for part in parts:
                left = memoryview(part)
                while left:
                    left = left[file.write(left) :]
        beside.rename(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def read_header(descriptor: int) -> SampleFile:
    """What an open file holds. Raises WrongData where that is no sample."""
    try:
        length = int.from_bytes(os.pread(descriptor, LENGTH_BYTES, 0), "little")
        if not 0 < length <= MAX_HEADER_BYTES:
            raise ValueError(f"a header of {length} bytes")
        fields = json.loads(os.pread(descriptor, length, LENGTH_BYTES))
        hidden, ids = fields["hidden_states"], fields["token_ids"]
        return _sample(hidden, ids, LENGTH_BYTES + length, os.fstat(descriptor).st_size)
    except (ValueError, KeyError, TypeError) as error:
        raise WrongData(f"it is not a file of hidden states: {type(error).__name__} {error}") from error


def _sample(hidden: dict[str, Any], ids: dict[str, Any], data_start: int, file_bytes: int) -> SampleFile:
    (hidden_start, hidden_end), (ids_start, ids_end) = hidden["data_offsets"], ids["data_offsets"]
    if max(hidden_end, ids_end) + data_start > file_bytes:
        raise ValueError(f"it has {file_bytes} bytes of {max(hidden_end, ids_end) + data_start}")
    if ids["dtype"] != "I64":
        raise ValueError(f"its token ids are {ids['dtype']}")
    num_bytes = hidden_end - hidden_start
    states = Region(0, num_bytes, data_start + hidden_start)
    tokens = Region(_aligned(num_bytes), ids_end - ids_start, data_start + ids_start)
    return SampleFile(tuple(hidden["shape"]), str(hidden["dtype"]), (states, tokens))


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // ALIGN_BYTES) * ALIGN_BYTES
