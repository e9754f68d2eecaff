"""The store on Mooncake: the only module that imports it. Owns one native client, its deadlines and its errors."""

from __future__ import annotations

import re
import secrets
import socket
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np

from dspark_train.errors import StoreError
from dspark_train.store.deadline import Deadlines, Span
from dspark_train.store.own_segment import OwnSegment, start_of
from dspark_train.store.protocol import ALIGN_BYTES, Copy, Range, plain_copy
from dspark_train.store.statuses import BAD_RANGE, NOT_FOUND, describe_status, status_error
from dspark_train.store.whole_object import WholeRead, plan_whole
from dspark_train.topology.schema import Store

T = TypeVar("T")

SETUP_TIMEOUT_S = 120.0
"""Mounting a segment: allocating it and, with RDMA, registering it."""
CONNECT_TIMEOUT_S = 5.0
HANDSHAKE = "P2PHANDSHAKE"
FIRST_OBJECT = "segment"
LIBRARIES_REMEDY = (
    "Mooncake needs system libraries that are missing here; on Debian: "
    "apt-get install libibverbs1 librdmacm1 libnuma1 libcurl4 liburing2"
)


def native() -> Any:
    """Mooncake's store module. Raises StoreError saying what to install."""
    try:
        import mooncake.store
    except ImportError as error:
        remedy = LIBRARIES_REMEDY if ".so" in str(error) else "install dspark-train with its extra cpu or gpu"
        raise StoreError(f"mooncake.store cannot be imported: {error}: {remedy}") from error
    return mooncake.store


def pinned(segment: str = "") -> Any:
    """Mooncake's ReplicateConfig for a put that is never evicted, into ``segment`` where it has room."""
    config = native().ReplicateConfig()
    config.replica_num = 1
    config.with_hard_pin = True
    if segment:
        config.preferred_segment = segment
    return config


def connect(store: Store, *, host: str, master: str, segment_bytes: int, timeout_s: float) -> MooncakeClient:
    """A client as the topology says. host: this node's address. master: ``address:port``. Raises StoreError."""
    return MooncakeClient(
        local_hostname=host,
        master=master,
        segment_bytes=segment_bytes,
        buffer_bytes=store.client_buffer_mib * 2**20,
        protocol=store.protocol,
        device=store.device,
        timeout_s=timeout_s,
    )


def join(*, local_hostname: str, master: str, buffer_bytes: int, protocol: str = "tcp", device: str = "") -> Any:
    """A native client without a segment, for what puts out of buffers of its own. Raises StoreError."""
    _reach(master)
    client = native().MooncakeDistributedStore()
    status = client.setup(local_hostname, HANDSHAKE, 0, buffer_bytes, protocol, device, master)
    if status:
        raise StoreError(f"connecting {local_hostname} to the store at {master}: {describe_status(status)}")
    return client


class MooncakeClient:
    """A `StoreClient` on Mooncake.

    A read that ran into its deadline may still write into its memory; a later read into the same memory, and
    unregistering it, wait for that. Existence checks and reads grant leases, which removals of ours disregard.
    """

    def __init__(
        self,
        *,
        local_hostname: str,
        master: str,
        segment_bytes: int,
        buffer_bytes: int,
        protocol: str = "tcp",
        device: str = "",
        timeout_s: float,
    ) -> None:
        """Connect, and mount ``segment_bytes`` (0: none). Raises StoreError."""
        _reach(master)
        self._deadlines = Deadlines(timeout_s)
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._closed = False
        self._client = native().MooncakeDistributedStore()
        setup = partial(
            self._client.setup, local_hostname, HANDSHAKE, segment_bytes, buffer_bytes, protocol, device, master
        )
        what = f"connecting {local_hostname} to the store at {master}"
        status = self._deadlines.run(what, setup, timeout_s=SETUP_TIMEOUT_S)
        if status:
            raise StoreError(f"{what}: {describe_status(status)}; protocol {protocol}, segment {segment_bytes} bytes")
        self._buffers: dict[int, Span] = {}
        self._segment = str(self._client.get_hostname()) if segment_bytes else ""
        self._scratch = np.zeros(ALIGN_BYTES, dtype=np.uint8)
        self.register(self._scratch.ctypes.data, ALIGN_BYTES)
        self._own = self._find_own(segment_bytes) if segment_bytes else None

    @property
    def segment(self) -> str:
        return self._segment

    def register(self, address: int, num_bytes: int) -> None:
        """Make a buffer known. Raises StoreError."""
        status = self._call("register", lambda client: client.register_buffer(address, num_bytes))
        if status:
            raise StoreError(f"registering {num_bytes} bytes at {address:#x}: {describe_status(status)}")
        self._buffers[address] = Span(address, address + num_bytes)

    def unregister(self, address: int) -> None:
        """Forget a buffer; unknown ones are fine. Raises StoreError while an abandoned read may write into it."""
        span = self._buffers.get(address)
        if span is None:
            return
        if not self._deadlines.settle([span], self._timeout_s):
            raise StoreError(f"the buffer at {address:#x} is still being written by a read that was given up")
        self._call("unregister", lambda client: client.unregister_buffer(address))
        self._buffers.pop(address, None)

    def put(self, key: str, data: bytes, segment: str = "") -> None:
        """Put ``data``, hard-pinned. Raises StoreFull, StoreError."""
        status = self._call(f"put {key}", lambda client: client.put(key, data, pinned(segment)))
        if status:
            raise status_error("put", key, status)

    def exist(self, keys: Sequence[str]) -> list[bool]:
        """Which objects are there. Raises StoreError if the master does not answer."""
        if not keys:
            return []
        statuses = self._call(f"exist {_some(keys)}", lambda client: client.batch_is_exist(list(keys)))
        for key, status in zip(keys, statuses, strict=True):
            if status < 0 and status != NOT_FOUND:
                raise status_error("exist", key, status)
        return [status == 1 for status in statuses]

    def read(self, address: int, ranges: Sequence[Range], copy: Copy = plain_copy) -> list[str]:
        """See `StoreClient.read`. Raises StoreError where no answer comes in time."""
        spans = _spans(address, ranges)
        # Mooncake checks this for ranges only: a whole object from the own segment is copied anywhere.
        inside = [any(s.start <= span.start and span.end <= s.end for s in self._buffers.values()) for span in spans]
        outcome = ["" if good else describe_status(BAD_RANGE) for good in inside]
        left = self._read_own(address, ranges, [place for place, good in enumerate(inside) if good], outcome, copy)
        whole, rest = plan_whole(address, ranges, self._scratch.ctypes.data, left)
        if whole:
            rest += self._read_whole(whole, spans, outcome)
        self._read_ranges(address, ranges, sorted(rest), outcome)
        return outcome

    def remove(self, keys: Sequence[str]) -> None:
        """Remove objects, leased ones too. Raises StoreError."""
        if not keys:
            return
        statuses = self._call(f"remove {_some(keys)}", lambda client: client.batch_remove(list(keys), True))
        for key, status in zip(keys, statuses, strict=True):
            if status < 0 and status != NOT_FOUND:
                raise status_error("remove", key, status)

    def remove_prefix(self, prefix: str) -> int:
        """Remove all objects whose keys begin with ``prefix``, leased ones too. Raises StoreError."""
        if not prefix:
            raise StoreError("removing by an empty prefix would remove every object of every run")
        pattern = f"^{regex_of(prefix)}"
        status = int(self._call(f"remove {prefix}*", lambda client: client.remove_by_regex(pattern, True)))
        if status < 0:
            raise status_error("remove", f"{prefix}*", status)
        return status

    def close(self) -> None:
        """Leave the store, segment included; twice is fine.

        A client with a call still hanging in it is left open: used after its end it crashes the process.
        """
        with self._lock:
            if self._closed:
                return
            self._closed = True
        if self._deadlines.close(self._timeout_s):
            self._client.close()

    def _find_own(self, segment_bytes: int) -> OwnSegment | None:
        """Where this client's segment lies in memory, by an object put there; None where that cannot be told."""
        key, content = f"{FIRST_OBJECT}/{self._segment}", secrets.token_bytes(32)
        self.put(key, content, self._segment)
        own = self._call(
            "find the own segment", lambda client: OwnSegment.found_by(client, key, content, segment_bytes)
        )
        self.remove([key])
        return own

    def _read_own(
        self, address: int, ranges: Sequence[Range], places: Sequence[int], outcome: list[str], copy: Copy
    ) -> Sequence[int]:
        """Copy what lies in the own segment; returns the places of ranges whose objects do not."""
        own = self._own
        if own is None or not places:
            return places
        keys = list(dict.fromkeys(ranges[place].key for place in places))

        def copy_found(client: Any) -> Sequence[int]:
            found = own.find(client, keys)
            for place in (place for place in places if ranges[place].key in found):
                wanted = ranges[place]
                start = start_of(wanted, found[wanted.key])
                if start is None:
                    outcome[place] = describe_status(BAD_RANGE)
                else:
                    copy(place, address + wanted.target_offset, start, wanted.num_bytes)
            return [place for place in places if ranges[place].key not in found]

        return self._call(
            f"read {_some(keys)}", copy_found, writes=_spans(address, [ranges[place] for place in places])
        )

    def _read_whole(self, whole: Sequence[WholeRead], spans: Sequence[Span], outcome: list[str]) -> list[int]:
        """Read whole objects; returns the places of ranges to be read as ranges: their object is not of that size."""
        keys, addresses = [read.key for read in whole], [list(read.addresses) for read in whole]
        sizes = [list(read.sizes) for read in whole]
        statuses = self._call(
            f"read {_some(keys)}",
            lambda client: client.batch_get_into_multi_buffers(keys, addresses, sizes),
            writes=[spans[index] for read in whole for index in read.indices],
        )
        again: list[int] = []
        for read, status in zip(whole, statuses, strict=True):
            if status == NOT_FOUND:
                for index in read.indices:
                    outcome[index] = describe_status(status)
            elif status != read.num_bytes:
                again += read.indices
        return again

    def _read_ranges(self, address: int, ranges: Sequence[Range], indices: Sequence[int], outcome: list[str]) -> None:
        wanted = [ranges[index] for index in indices]
        if not wanted:
            return
        keys = [part.key for part in wanted]
        targets, sources = [[part.target_offset] for part in wanted], [[part.source_offset] for part in wanted]
        sizes = [[part.num_bytes] for part in wanted]
        counts = self._call(
            f"read {_some(keys)}",
            lambda client: client.get_into_ranges([address], [keys], [targets], [sources], [sizes]),
            writes=_spans(address, wanted),
        )[0]
        for index, part, count in zip(indices, wanted, counts, strict=True):
            outcome[index] = _shortfall(count[0], part.num_bytes)

    def _call(self, what: str, call: Callable[[Any], T], writes: Sequence[Span] = ()) -> T:
        return self._deadlines.run(what, partial(call, self._client), writes=writes)


def regex_of(text: str) -> str:
    """``text`` as a regular expression of std::regex, which takes a backslash before its own signs only."""
    return re.sub(r"([\\^$.|?*+()\[\]{}])", r"\\\1", text)


def _reach(master: str) -> None:
    """Raise StoreError where nothing listens at ``master``.

    The native client would try for 90 s, and stop every other Python thread for as long.
    """
    host, _, port = master.rpartition(":")
    try:
        socket.create_connection((host, int(port)), CONNECT_TIMEOUT_S).close()
    except (OSError, ValueError) as error:
        raise StoreError(f"the store's master does not answer at {master}: {error}; is mooncake_master up?") from error


def _spans(address: int, ranges: Sequence[Range]) -> list[Span]:
    return [Span(address + r.target_offset, address + r.target_offset + r.num_bytes) for r in ranges]


def _shortfall(count: int, wanted_bytes: int) -> str:
    if count == wanted_bytes:
        return ""
    return describe_status(count) if count < 0 else f"{count} of {wanted_bytes} bytes were read"


def _some(keys: Sequence[str]) -> str:
    return keys[0] if len(keys) == 1 else f"{keys[0]} and {len(keys) - 1} more"
