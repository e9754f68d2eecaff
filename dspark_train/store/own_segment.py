"""Objects that lie in this process's own memory: found by their descriptors, copied as plain memory.

Mooncake copies from a client's own segment in one thread of its own, however many ask. A rank's samples lie in its own
segment by plan, so here they are copied by whoever reads them.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dspark_train.store.deadline import Span
from dspark_train.store.protocol import Range

_MAPS = Path("/proc/self/maps")


class OwnSegment:
    """What of the store lies in this process. Memory outside the segment's mapping is never touched."""

    def __init__(self, endpoint: str, memory: Span) -> None:
        """endpoint: under which descriptors name this process; memory: the mapping that holds the segment."""
        self._endpoint, self._memory = endpoint, memory

    @classmethod
    def found_by(cls, client: Any, key: str, content: bytes, segment_bytes: int) -> OwnSegment | None:
        """The segment that holds the object ``key``, if its ``content``, known to nobody else, stands in this memory.

        None where it does not: the master chose another segment, or its memory cannot be told.
        """
        for descriptor in client.get_replica_desc(key):
            if not descriptor.is_memory_replica():
                continue
            buffer = descriptor.get_memory_descriptor().buffer_descriptor
            memory = _mapping(buffer.buffer_address)
            if memory is None or memory.end - memory.start < segment_bytes:
                continue
            if ctypes.string_at(buffer.buffer_address, len(content)) == content:
                return cls(buffer.transport_endpoint, memory)
        return None

    def find(self, client: Any, keys: Sequence[str]) -> dict[str, Span]:
        """Which of these objects lie here whole, and where. Asks the master, once."""
        found = {}
        for key, replicas in client.batch_get_replica_desc(list(keys)).items():
            if len(replicas) == 1 and (span := self._span(replicas[0])) is not None:
                found[key] = span
        return found

    def _span(self, replica: Any) -> Span | None:
        if not replica.is_memory_replica() or replica.status.name != "COMPLETE":
            return None
        buffer = replica.get_memory_descriptor().buffer_descriptor
        span = Span(buffer.buffer_address, buffer.buffer_address + buffer.size)
        is_here = self._memory.start <= span.start and span.end <= self._memory.end
        return span if is_here and buffer.transport_endpoint == self._endpoint else None


def start_of(wanted: Range, source: Span) -> int | None:
    """Where a range of the object at ``source`` begins; None where the object does not have all of it."""
    start = source.start + wanted.source_offset
    is_within = wanted.source_offset >= 0 and wanted.num_bytes >= 0 and start + wanted.num_bytes <= source.end
    return start if is_within else None


def _mapping(address: int) -> Span | None:
    """The readable mapping of this process that holds ``address``."""
    try:
        lines = _MAPS.read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    for line in lines:
        where, access = line.split(maxsplit=2)[:2]
        start, end = (int(bound, 16) for bound in where.split("-"))
        if start <= address < end:
            return Span(start, end) if access.startswith("rw") else None
    return None
