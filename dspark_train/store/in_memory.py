"""The store without Mooncake: the shipped fake, and what a test or simulation sets up to break it.

Same placement rules as the real one: an object goes to the preferred segment, else to any with room, else StoreFull.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

from dspark_train.errors import StoreError
from dspark_train.store.protocol import Copy, Range, plain_copy
from dspark_train.store.statuses import BAD_RANGE, FULL, NOT_FOUND, RPC_FAILED, describe_status, status_error

DEFAULT_BUFFER_BYTES = 64 * 2**20


@dataclass
class Segment:
    """Memory that a client gives to the store."""

    capacity_bytes: int
    objects: dict[str, bytes] = field(default_factory=dict)

    @property
    def used_bytes(self) -> int:
        return sum(len(data) for data in self.objects.values())


@dataclass
class Faults:
    """What is broken now; a test sets and clears these."""

    unreachable: bool = False
    """The master does not answer: every call raises StoreError."""
    num_failing_checks: int = 0
    """So many existence checks raise StoreError."""
    failing_puts: dict[str, int] = field(default_factory=dict)
    """Key -> status that a put of it gets."""
    hidden: set[str] = field(default_factory=set)
    """Keys that exist by their name, and whose bytes cannot be read (their owner was killed just now)."""


class InMemoryServer:
    """The shared part: segments and their objects. Thread-safe."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.segments: dict[str, Segment] = {}
        self.faults = Faults()
        self._num_clients = 0

    def client(self, segment_bytes: int = 0, buffer_bytes: int = DEFAULT_BUFFER_BYTES) -> InMemoryClient:
        """A client, with a segment of its own where ``segment_bytes`` is not 0."""
        with self.lock:
            self._num_clients += 1
            name = f"memory:{self._num_clients}" if segment_bytes else ""
            if name:
                self.segments[name] = Segment(segment_bytes)
        return InMemoryClient(self, name, buffer_bytes)

    @property
    def keys(self) -> set[str]:
        """Every object there is."""
        with self.lock:
            return {key for segment in self.segments.values() for key in segment.objects}

    @property
    def used_bytes(self) -> int:
        with self.lock:
            return sum(segment.used_bytes for segment in self.segments.values())

    def segment_of(self, key: str) -> str:
        """Name of the segment that holds the object. Raises KeyError."""
        with self.lock:
            found = next((name for name, segment in self.segments.items() if key in segment.objects), None)
        if found is None:
            raise KeyError(key)
        return found

    def find(self, key: str) -> bytes | None:
        """The object's bytes, None where there is none."""
        with self.lock:
            return next((s.objects[key] for s in self.segments.values() if key in s.objects), None)

    def place(self, key: str, data: bytes, preferred: str) -> bool:
        """Put the object where there is room, the preferred segment first. False: nowhere."""
        with self.lock:
            names = sorted(self.segments, key=lambda name: name != preferred)
            for segment in (self.segments[name] for name in names):
                if segment.used_bytes + len(data) <= segment.capacity_bytes:
                    segment.objects[key] = bytes(data)
                    return True
        return False

    def drop_segment(self, name: str) -> None:
        """The owner died: its objects are gone."""
        with self.lock:
            self.segments.pop(name, None)


class InMemoryClient:
    """A `StoreClient` on an `InMemoryServer` in the same process."""

    def __init__(self, server: InMemoryServer, segment: str, buffer_bytes: int) -> None:
        self._server, self._segment, self._buffer_bytes = server, segment, buffer_bytes
        self._buffers: dict[int, int] = {}
        self._closed = False

    @property
    def segment(self) -> str:
        return self._segment

    def register(self, address: int, num_bytes: int) -> None:
        """Make a buffer known."""
        self._check("register")
        self._buffers[address] = num_bytes

    def unregister(self, address: int) -> None:
        """Forget a buffer; unknown ones are fine."""
        self._check("unregister")
        self._buffers.pop(address, None)

    def put(self, key: str, data: bytes, segment: str = "") -> None:
        """Put ``data``; an existing key keeps its bytes. Raises StoreFull, StoreError."""
        self._check(f"put {key}")
        status = self._server.faults.failing_puts.get(key, 0)
        if not data or len(data) > self._buffer_bytes:
            status = BAD_RANGE
        if not status and self._server.find(key) is None and not self._server.place(key, data, segment):
            status = FULL
        if status:
            raise status_error("put", key, status)

    def exist(self, keys: Sequence[str]) -> list[bool]:
        """Which objects are there."""
        self._check("exist")
        if self._server.faults.num_failing_checks:
            self._server.faults.num_failing_checks -= 1
            raise status_error("exist", keys[0], RPC_FAILED)
        there = self._server.keys
        return [key in there for key in keys]

    def read(self, address: int, ranges: Sequence[Range], copy: Copy = plain_copy) -> list[str]:
        """See `StoreClient.read`."""
        self._check("read")
        return [self._read_one(address, place, wanted, copy) for place, wanted in enumerate(ranges)]

    def remove(self, keys: Sequence[str]) -> None:
        """Remove objects."""
        self._check("remove")
        with self._server.lock:
            for segment in self._server.segments.values():
                for key in keys:
                    segment.objects.pop(key, None)

    def remove_prefix(self, prefix: str) -> int:
        """Remove all objects whose keys begin with ``prefix``."""
        if not prefix:
            raise StoreError("removing by an empty prefix would remove every object of every run")
        self._check("remove_prefix")
        with self._server.lock:
            keys = [key for key in self._server.keys if key.startswith(prefix)]
            self.remove(keys)
        return len(keys)

    def close(self) -> None:
        """Leave the store, segment included; twice is fine."""
        self._closed = True
        if self._segment:
            self._server.drop_segment(self._segment)

    def _read_one(self, address: int, place: int, wanted: Range, copy: Copy) -> str:
        target = address + wanted.target_offset
        inside = any(start <= target and target + wanted.num_bytes <= start + n for start, n in self._buffers.items())
        data = self._server.find(wanted.key)
        if data is None or wanted.key in self._server.faults.hidden:
            return describe_status(NOT_FOUND)
        if not inside or wanted.source_offset + wanted.num_bytes > len(data):
            return describe_status(BAD_RANGE)
        source = (ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p).value or 0) + wanted.source_offset
        is_own = self._server.segment_of(wanted.key) == self._segment
        (copy if is_own else plain_copy)(place, target, source, wanted.num_bytes)
        return ""

    def _check(self, what: str) -> None:
        if self._closed:
            raise StoreError(f"{what}: the client is closed")
        if self._server.faults.unreachable:
            raise status_error(what, "", RPC_FAILED)
