"""The store on a directory that engines and ranks share: a file an object, samples as `sample_file` has them.

Nothing is ever evicted, and what is there outlives whoever put it. Room is what the ledger counts; a disk that is full
all the same refuses a put, as any store does.
"""

from __future__ import annotations

import ctypes
import errno
import os
import secrets
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from dspark_train.errors import StoreError, WrongData
from dspark_train.store.protocol import Copy, Range, plain_copy
from dspark_train.store.sample_file import PARTIAL, SUFFIX, Region, read_header, write_whole
from dspark_train.store.statuses import BAD_RANGE, FULL, NOT_FOUND, describe_status, status_error

PLAIN = ".object"
"""Ends the name of what is no sample: markers, and what a test puts."""
NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


def sample_path(root: Path, key: str) -> Path:
    """The file of a sample. Raises StoreError for a key that would lead elsewhere."""
    return _path(root, key, SUFFIX)


def _path(root: Path, key: str, suffix: str) -> Path:
    if not key or any(part in ("", ".", "..") for part in key.rstrip("/").split("/")):
        raise StoreError(f"{key!r} cannot be the name of a file")
    return root / f"{key}{suffix}"


def disk_error(what: str, key: str, error: OSError) -> StoreError:
    """The store's error for the operating system's: StoreFull where there is no room."""
    if error.errno in NO_ROOM:
        return status_error(what, key, FULL)
    return StoreError(f"{what} {key}: {error}")


class DiskClient:
    """A `StoreClient` on the files below ``root``."""

    def __init__(self, root: Path, owner: str = "", num_bytes: int = 0) -> None:
        """owner: of a segment, a name under which ledgers count ``num_bytes``; none where that is 0.

        Raises StoreError where the directory cannot be made or written, or the disk has not as much room.
        """
        self._root, self._buffers, self._closed = root, dict[int, int](), False
        self._segment = f"{owner}-{secrets.token_hex(4)}" if num_bytes else ""
        try:
            root.mkdir(parents=True, exist_ok=True)
            free_bytes = os.statvfs(root).f_bavail * os.statvfs(root).f_frsize
        except OSError as error:
            raise StoreError(f"store.path: {root} cannot be used: {error}") from error
        if not os.access(root, os.W_OK):
            raise StoreError(f"store.path: {root} cannot be written")
        if free_bytes < num_bytes:
            text = f"store.path: {root} has {free_bytes} bytes free, and store.segment_gib promises {num_bytes}"
            raise StoreError(f"{text}: lower it, or free some")

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
        """Put a small object; an existing key keeps its bytes, and ``segment`` says nothing. StoreFull, StoreError."""
        self._check(f"put {key}")
        path = _path(self._root, key, PLAIN)
        try:
            if not path.exists():
                write_whole(path, [data])
        except OSError as error:
            raise disk_error("put", key, error) from error

    def exist(self, keys: Sequence[str]) -> list[bool]:
        """Which objects are there."""
        self._check("exist")
        return [any(path.exists() for path in self._paths(key)) for key in keys]

    def read(self, address: int, ranges: Sequence[Range], copy: Copy = plain_copy) -> list[str]:
        """See `StoreClient.read`. Files are read, nothing stands in memory."""
        self._check("read")
        outcome = [describe_status(BAD_RANGE)] * len(ranges)
        places: dict[str, list[int]] = {}
        for place, wanted in enumerate(ranges):
            if self._is_inside(address + wanted.target_offset, wanted.num_bytes):
                places.setdefault(wanted.key, []).append(place)
        for key, own in places.items():
            self._read_object(address, key, ranges, own, outcome)
        return outcome

    def remove(self, keys: Sequence[str]) -> None:
        """Remove objects. Raises StoreError."""
        self._check("remove")
        for path in (path for key in keys for path in self._paths(key)):
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                raise StoreError(f"remove {path}: {error}") from error

    def remove_prefix(self, prefix: str) -> int:
        """Remove all objects whose keys begin with ``prefix``, and directories left empty."""
        if not prefix:
            raise StoreError("removing by an empty prefix would remove every object of every run")
        self._check("remove_prefix")
        return remove_objects(self._root, prefix)

    def close(self) -> None:
        """Leave the store; twice is fine. What was put stays."""
        self._closed = True

    def _paths(self, key: str) -> tuple[Path, Path]:
        return sample_path(self._root, key), _path(self._root, key, PLAIN)

    def _read_object(
        self, address: int, key: str, ranges: Sequence[Range], places: Sequence[int], outcome: list[str]
    ) -> None:
        descriptor, is_sample = self._open(key)
        if descriptor is None:
            for place in places:
                outcome[place] = describe_status(NOT_FOUND)
            return
        try:
            regions, total_bytes = _regions(descriptor, is_sample)
            for place in places:
                wanted = ranges[place]
                if wanted.source_offset + wanted.num_bytes <= total_bytes:
                    outcome[place] = _copy(descriptor, regions, wanted, address + wanted.target_offset)
        except (OSError, WrongData) as error:
            for place in places:
                outcome[place] = str(error)
        finally:
            os.close(descriptor)

    def _open(self, key: str) -> tuple[int | None, bool]:
        """Its file, opened (None: there is none), and whether it is a sample's."""
        for path in self._paths(key):
            try:
                return os.open(path, os.O_RDONLY), path.suffix == SUFFIX
            except FileNotFoundError:
                continue
        return None, False

    def _is_inside(self, target: int, num_bytes: int) -> bool:
        return any(start <= target and target + num_bytes <= start + n for start, n in self._buffers.items())

    def _check(self, what: str) -> None:
        if self._closed:
            raise StoreError(f"{what}: the client is closed")


def objects(root: Path, prefix: str = "") -> Iterator[Path]:
    """The files of all objects whose keys begin with ``prefix``; those being written as well."""
    base = root / prefix.rpartition("/")[0]
    for directory, _, names in os.walk(base):
        for name in names:
            path = Path(directory, name)
            if name.endswith((SUFFIX, PLAIN, PARTIAL)) and path.relative_to(root).as_posix().startswith(prefix):
                yield path


def remove_objects(root: Path, prefix: str) -> int:
    """Remove the objects of a prefix, and directories left empty. Returns how many. Raises StoreError."""
    found = list(objects(root, prefix))
    try:
        for path in found:
            path.unlink(missing_ok=True)
    except OSError as error:
        raise StoreError(f"remove {prefix}*: {error}") from error
    parents = {above for path in found for above in path.parents if root in above.parents}
    for directory in sorted(parents, key=lambda path: -len(path.parts)):
        try:
            directory.rmdir()
        except OSError:
            continue  # something else is in it
    return sum(not path.name.endswith(PARTIAL) for path in found)


def _regions(descriptor: int, is_sample: bool) -> tuple[Sequence[Region], int]:
    """Where the object's bytes lie in its file, and how many it has. Raises WrongData."""
    if not is_sample:
        num_bytes = os.fstat(descriptor).st_size
        return [Region(0, num_bytes, 0)], num_bytes
    found = read_header(descriptor)
    return found.regions, found.total_bytes


def _copy(descriptor: int, regions: Sequence[Region], wanted: Range, target: int) -> str:
    """Read a range to memory at ``target``; what lies between the regions is zero. Returns "" or what is lacking."""
    memory = np.ctypeslib.as_array((ctypes.c_uint8 * wanted.num_bytes).from_address(target))
    first, end = wanted.source_offset, wanted.source_offset + wanted.num_bytes
    num_read = 0
    for region in regions:
        start, stop = max(first, region.start), min(end, region.start + region.num_bytes)
        if start >= stop:
            continue
        memory[num_read : start - first] = 0
        num_read = stop - first
        part, offset = memoryview(memory.data)[start - first : num_read], region.offset + start - region.start
        while part:
            count = os.preadv(descriptor, [part], offset)
            if not count:
                return f"{len(part)} of {wanted.num_bytes} bytes are missing at the end of its file"
            part, offset = part[count:], offset + count
    memory[num_read:] = 0
    return ""
