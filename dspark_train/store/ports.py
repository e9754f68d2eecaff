"""Ports that stay reserved: a locked file each, held until released or until the process ends.

A port found free and given away is lost to the next process that looks; a lock keeps it from every process of ours on
the host, and a bind test keeps us from everybody else's. Ports lie below the ephemeral range, so that no outgoing
connection takes one in between.
"""

from __future__ import annotations

import errno
import fcntl
import os
import random
import socket
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

from dspark_train.errors import StartError

FIRST_PORT = 20000
DEFAULT_EPHEMERAL_START = 32768
FREE_POLL_S = 0.1
_RANGE_FILE = Path("/proc/sys/net/ipv4/ip_local_port_range")


class AddressInUse(StartError):
    """A port was taken by somebody else between its reservation and its use: try with others."""


class PortLock:
    """A reserved port. Raises OSError from the constructor where another process has it."""

    def __init__(self, port: int, directory: Path, *, reuse: bool = False) -> None:
        """reuse: as `bind_test` has it."""
        self.port = port
        self._file: int = os.open(directory / str(port), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            bind_test(port, reuse=reuse)
        except OSError:
            self.release()
            raise

    def release(self) -> None:
        """Give the port back; twice is fine."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def bind_test(port: int, *, reuse: bool = False) -> None:
    """Bind the port on every interface and let go again. Raises OSError where anything listens on it.

    reuse: connections of a server that was there before, which linger for a minute, do not count.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, int(reuse))
        probe.bind(("", port))


def bindable(port: int) -> bool:
    """Whether nothing listens on the port, on any interface."""
    try:
        bind_test(port)
    except OSError:
        return False
    return True


def lock_directory() -> Path:
    """Where this user's locks lie on this host."""
    directory = Path(tempfile.gettempdir()) / f"dspark-ports-{os.getuid()}"
    directory.mkdir(mode=0o700, exist_ok=True)
    return directory


def port_range() -> range:
    """Ports from which we choose: below the kernel's ephemeral range where that leaves any."""
    first = DEFAULT_EPHEMERAL_START
    if _RANGE_FILE.is_file():
        first = int(_RANGE_FILE.read_text().split()[0])
    return range(FIRST_PORT, first if first > FIRST_PORT + 1000 else DEFAULT_EPHEMERAL_START)


def reserve_port() -> PortLock:
    """Reserve a free port on this host, chosen at random. Raises StartError where none is left."""
    candidates = port_range()
    for port in random.sample(candidates, len(candidates)):
        try:
            return PortLock(port, lock_directory())
        except OSError as error:
            if error.errno not in (errno.EADDRINUSE, errno.EWOULDBLOCK, errno.EACCES):
                raise
    raise StartError(f"no free port on {socket.gethostname()} in {candidates.start}-{candidates.stop - 1}")


def reserve_known(port: int, timeout_s: float) -> PortLock:
    """Reserve ``port`` itself, waiting for the one who has it to end. Raises StartError where it does not come free."""
    deadline_s = time.monotonic() + timeout_s
    while True:
        try:
            return PortLock(port, lock_directory(), reuse=True)
        except OSError as error:
            if time.monotonic() > deadline_s:
                where = f"port {port} on {socket.gethostname()}"
                raise StartError(f"{where} has not come free within {timeout_s:g} s: {error}") from error
        time.sleep(FREE_POLL_S)


def reserve_ports(names: Iterable[str]) -> dict[str, PortLock]:
    """Reserve one port a name. Raises StartError."""
    return {name: reserve_port() for name in names}
