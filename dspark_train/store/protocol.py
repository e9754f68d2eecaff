"""What ranks and engines ask of the store. `on_mooncake.py` is the real one, `in_memory.py` the shipped fake.

A sample's object: hidden states [num_tokens, layers, hidden] in the run's type, then at the next multiple of 64 bytes
its token ids, int64 [num_tokens].
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from dspark_train.schedule.layout import ALIGN_BYTES, TOKEN_ID_BYTES, SampleLayout

__all__ = ["ALIGN_BYTES", "TOKEN_ID_BYTES", "Copy", "Range", "SampleLayout", "StoreClient", "plain_copy"]


Copy = Callable[[int, int, int, int], None]
"""Copies a range that stands in this process's memory: told its place in the request, target, source, and size."""


def plain_copy(place: int, target: int, source: int, num_bytes: int) -> None:
    """A `Copy` that only copies."""
    ctypes.memmove(target, source, num_bytes)


@dataclass(frozen=True, slots=True)
class Range:
    """Bytes ``source_offset .. + num_bytes`` of an object, for ``target_offset`` of a registered buffer."""

    key: str
    source_offset: int
    target_offset: int
    num_bytes: int


class StoreClient(Protocol):
    """One process's connection to the store. Not for sharing between processes; calls are thread-safe."""

    @property
    def segment(self) -> str:
        """Name under which objects can be directed to this client's segment ("" where it has none)."""
        ...

    def register(self, address: int, num_bytes: int) -> None:
        """Make a buffer known; only registered buffers can be read into."""
        ...

    def unregister(self, address: int) -> None: ...

    def put(self, key: str, data: bytes, segment: str = "") -> None:
        """Put a small object, hard-pinned, into ``segment`` if given. Raises StoreFull, StoreError."""
        ...

    def exist(self, keys: Sequence[str]) -> list[bool]:
        """Which objects are there. Raises StoreError if the master does not answer."""
        ...

    def read(self, address: int, ranges: Sequence[Range], copy: Copy = plain_copy) -> list[str]:
        """Read ranges of objects into the registered buffer at ``address``, in one call.

        copy: does so with ranges that need no transfer, in whatever thread; which ones is the client's to know. Returns
        one string a range: "" where it was read in full, else the reason. Raises StoreError if the store fails as a
        whole.
        """
        ...

    def remove(self, keys: Sequence[str]) -> None:
        """Remove objects, leased ones too; those not there are no error."""
        ...

    def remove_prefix(self, prefix: str) -> int:
        """Remove all objects whose keys begin with ``prefix``, leased ones too. Returns how many.

        Raises StoreError; for an empty prefix too, as the store may serve other runs.
        """
        ...

    def close(self) -> None:
        """Leave the store; twice is fine."""
        ...
