"""The sockets of one process group in this process: whether they are all there, and cutting them.

gloo has no abort: a collective with a peer that hangs, or whose host is gone, blocks until the group's time-out,
whatever is done to the group's objects. Shutting its sockets down makes it fail at once (measured beside a peer that
was stopped: 18 ms). Which sockets are gloo's is read from the kernel: those watched by a poller that came with the
group and also watches a listening socket. Linux only; elsewhere nothing is found, and the time-out ends what hangs.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

_FDS = Path("/proc/self/fd")
_FD_INFO = Path("/proc/self/fdinfo")
_POLLER = "anon_inode:[eventpoll]"


class Connections:
    """Make it before the group is formed, and call :meth:`settle` once it is. Thread-safe."""

    def __init__(self, address: str, port: int) -> None:
        """address, port: of the group's rendezvous, whose clients here are cut as well."""
        self._hosts, self._port = {address, "localhost", "127.0.0.1", "::1"}, port
        self._before = _pollers()
        self._own: frozenset[int] | None = None
        self._num_open = 0
        self.is_cut = False
        """Set before the cutting begins, so that what a collective gives afterwards is known not to count."""

    def settle(self) -> None:
        """The group is formed: what is open now stays so for as long as no peer is lost."""
        self._own = self._new_pollers()
        self._num_open = len(_connected(self._own))

    def is_whole(self) -> bool:
        """Whether every peer's connection is still there. A peer that dies closes it; one that hangs does not."""
        return not self.is_cut and (self._own is None or len(_connected(self._own)) >= self._num_open)

    def cut(self) -> None:
        """Make collectives and rendezvous calls in flight fail, and all later ones; twice is fine."""
        self.is_cut = True
        for fd in _connected(self._new_pollers() if self._own is None else self._own):
            _shut(fd)
        for fd in _numbers(_FDS):
            with _dup(fd) as end:
                if end is not None and self._is_to_rendezvous(end):
                    _shut(fd)

    def _new_pollers(self) -> frozenset[int]:
        return frozenset(fd for fd in _pollers() - self._before if any(map(_is_listening, _watched(fd))))

    def _is_to_rendezvous(self, end: socket.socket) -> bool:
        if end.family not in (socket.AF_INET, socket.AF_INET6):
            return False
        try:
            host, port = end.getpeername()[:2]
        except OSError:
            return False
        return port == self._port and host.removeprefix("::ffff:") in self._hosts


def _numbers(directory: Path) -> list[int]:
    try:
        return [int(name) for name in os.listdir(directory)]
    except OSError:
        return []


def _pollers() -> frozenset[int]:
    found = set()
    for fd in _numbers(_FDS):
        with contextlib.suppress(OSError):
            if os.readlink(_FDS / str(fd)) == _POLLER:
                found.add(fd)
    return frozenset(found)


def _watched(poller: int) -> list[int]:
    """File descriptors that a poller watches."""
    try:
        lines = (_FD_INFO / str(poller)).read_text(encoding="ascii").splitlines()
    except OSError:
        return []
    return [int(line.split()[1]) for line in lines if line.startswith("tfd:")]


def _connected(pollers: frozenset[int]) -> list[int]:
    """The connected TCP sockets that these pollers watch."""
    found = []
    for fd in (fd for poller in pollers for fd in _watched(poller)):
        with _dup(fd) as end:
            if end is not None and end.family in (socket.AF_INET, socket.AF_INET6) and not _listens(end):
                found.append(fd)
    return found


def _is_listening(fd: int) -> bool:
    with _dup(fd) as end:
        return end is not None and end.family in (socket.AF_INET, socket.AF_INET6) and _listens(end)


def _listens(end: socket.socket) -> bool:
    return bool(end.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))


def _shut(fd: int) -> None:
    with _dup(fd) as end, contextlib.suppress(OSError):
        if end is not None:
            end.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def _dup(fd: int) -> Iterator[socket.socket | None]:
    """The socket behind a file descriptor, None where it is none; the descriptor itself is not touched."""
    try:
        copy = os.dup(fd)
    except OSError:
        yield None
        return
    try:
        end = socket.socket(fileno=copy)
    except OSError:
        os.close(copy)
        yield None
        return
    with end:
        yield end
