"""Hosts on one machine: network namespaces on a bridge, each with an address of its own. Needs iproute2 alone.

A lab belongs to the process that made it. However that process ends, a watcher (this module, run as a script) ends all
processes in the lab's namespaces and removes them; what a lab without a living owner left is removed by the next one.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

PREFIX = "dslab"
"""Of bridges, namespaces, links and directories: dslab3 is a lab's bridge, dslab3-1 its first host."""
MAX_LABS = 200
END_TIMEOUT_S = 20.0
POLL_S = 0.05
CARD = "eth0"
"""The one network card of a host, by the name it has there."""
RELAY = str(Path(__file__).with_name("relay.py"))
INNER_LINK, INNER_TAP, INNER_BRIDGE = "near", "far", "between"
QUEUE = "10000"
"""Frames that wait for a relay which a busy machine keeps waiting."""
Done = subprocess.CompletedProcess[str]


def missing() -> str:
    """Why there can be no lab here, "" where there can."""
    if os.geteuid() != 0:
        return "needs root"
    if absent := [tool for tool in ("ip", "ss") if shutil.which(tool) is None]:
        return f"needs {' and '.join(absent)}: apt-get install iproute2"
    return ""


def cannot_impair() -> str:
    """Why no link can be made bad here, "" where it can."""
    return "" if os.path.exists("/dev/net/tun") else "needs /dev/net/tun"


class Host:
    """One host of a lab. ``number`` counts from 1; ``address`` is reachable from all other hosts and from outside."""

    def __init__(self, lab: int, number: int) -> None:
        self.number, self.name = number, f"{PREFIX}{lab}-{number}"
        self.address = f"10.77.{lab}.{number}"
        self.directory = Path("/tmp") / self.name
        """Of its own; short, since sockets lie below it."""
        self._link = f"{PREFIX}{lab}v{number}"
        """The bridge's port that leads here."""
        self._bridge = f"{PREFIX}{lab}"
        self._wire = f"{self.name}w"
        """The namespace of the relay, while the link is bad."""
        self._relay: subprocess.Popen[str] | None = None
        self.is_cut = False

    def make(self) -> None:
        """Bring the namespace up, with its card."""
        self.directory.mkdir()
        _ip("netns", "add", self.name)
        _ip("link", "add", self._link, "type", "veth", "peer", "name", CARD, "netns", self.name)
        self._plug_in()
        _ip("-n", self.name, "link", "set", "lo", "up")
        _ip("-n", self.name, "address", "add", f"{self.address}/24", "dev", CARD)
        _ip("-n", self.name, "link", "set", CARD, "up")
        # So that asking which address leads outside, as libraries do, has an answer.
        _ip("-n", self.name, "route", "add", "default", "dev", CARD)
        # What most machines have and not this kernel's choice, such as bbr, which hardly heeds lost packets.
        network = f"{self.address.rpartition('.')[0]}.0/24"
        _try("-n", self.name, "route", "replace", network, "dev", CARD, "src", self.address, "congctl", "cubic")

    def argv(self, argv: Sequence[str]) -> list[str]:
        """The command that runs ``argv`` on this host."""
        return ["ip", "netns", "exec", self.name, *argv]

    def run(self, *argv: str, env: Mapping[str, str] | None = None, timeout_s: float = 60.0) -> Done:
        """Run a command there; output is kept, and nothing raised where it fails."""
        full = None if env is None else {**os.environ, **env}
        return subprocess.run(self.argv(argv), env=full, capture_output=True, text=True, timeout=timeout_s, check=False)

    def pids(self) -> list[int]:
        """Processes that run there."""
        return _pids(self.name)

    def kill(self) -> None:
        """The power fails: every process there is gone at once. Its disk stays."""
        _end_processes(self.name)

    def cut(self) -> None:
        """Pull the cable."""
        _ip("link", "set", self._link, "down")
        self.is_cut = True

    def heal(self) -> None:
        """Put the cable back; twice is fine."""
        _ip("link", "set", self._link, "up")
        self.is_cut = False

    def impair(self, delay_ms: float = 0.0, loss_percent: float = 0.0) -> None:
        """Delay what this host sends and gets, and lose some of it; without arguments as good as new."""
        self._end_relay()
        if delay_ms or loss_percent:
            self._begin_relay(f"--delay-ms={delay_ms}", f"--loss-percent={loss_percent}", f"--seed={self.number}")

    def _begin_relay(self, *options: str) -> None:
        """Put a relay between the host's link and the bridge: link, inner bridge, TAP, relay, TAP as the new port."""
        _ip("netns", "add", self._wire)
        argv = ["ip", "netns", "exec", self._wire, sys.executable, "-I", RELAY, INNER_TAP, self._link, *options]
        self._relay = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, start_new_session=True)
        assert self._relay.stdout is not None
        assert self._relay.stdout.readline() == "up\n", f"no relay for {self.name}"
        _ip("-n", self._wire, "link", "add", INNER_BRIDGE, "type", "bridge")
        _ip("link", "set", self._link, "nomaster")
        _ip("link", "set", self._link, "netns", self._wire, "name", INNER_LINK)
        _ip("-n", self._wire, "link", "set", self._link, "netns", str(os.getpid()))  # whose namespace the bridge is in
        for name in (INNER_LINK, INNER_TAP):
            _ip("-n", self._wire, "link", "set", name, "txqueuelen", QUEUE, "master", INNER_BRIDGE, "up")
        _ip("-n", self._wire, "link", "set", INNER_BRIDGE, "up")
        _ip("link", "set", self._link, "txqueuelen", QUEUE)
        self._plug_in()

    def _end_relay(self) -> None:
        if self._relay is None:
            return
        self.end_relay_process()
        _ip("-n", self._wire, "link", "set", INNER_LINK, "netns", str(os.getpid()), "name", self._link)
        _ip("netns", "delete", self._wire)
        self._plug_in()

    def end_relay_process(self) -> None:
        """End it and nothing more, as where the links go with the lab; twice is fine."""
        if self._relay is not None:
            self._relay.kill()
            self._relay.communicate()
            self._relay = None

    def _plug_in(self) -> None:
        _ip("link", "set", self._link, "master", self._bridge, "down" if self.is_cut else "up")


class Lab:
    """Hosts that reach each other. A context manager: leaving it ends everything that runs there."""

    def __init__(self, num_hosts: int) -> None:
        """Raises OSError or AssertionError where a network cannot be made."""
        for stale in _stale():
            clean(stale)
        self.number = _take_number()
        self._watcher = subprocess.Popen(
            [sys.executable, "-I", __file__, str(self.number)], stdin=subprocess.PIPE, start_new_session=True
        )
        self.hosts = [Host(self.number, number) for number in range(1, num_hosts + 1)]
        try:
            for host in self.hosts:
                host.make()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def heal(self) -> None:
        """Every link as good as new."""
        for host in self.hosts:
            host.heal()
            host.impair()

    def close(self) -> None:
        """End every process in the lab and remove it; twice is fine."""
        clean(self.number)
        for host in self.hosts:
            host.end_relay_process()
        if self._watcher.stdin is not None:
            self._watcher.stdin.close()
        self._watcher.wait(END_TIMEOUT_S)


def clean(lab: int) -> None:
    """Remove a lab, whatever state it is in."""
    for name in _namespaces():
        if name.startswith(f"{PREFIX}{lab}-"):
            _end_processes(name)
            _try("netns", "delete", name)
    for directory in Path("/tmp").glob(f"{PREFIX}{lab}-*"):
        shutil.rmtree(directory, ignore_errors=True)
    for link in Path("/sys/class/net").glob(f"{PREFIX}{lab}v*"):
        _try("link", "delete", link.name)  # goes with its namespace, but the kernel takes its time for that
    _try("link", "delete", f"{PREFIX}{lab}")


def _take_number() -> int:
    """The number of a new lab: making its bridge is what claims it, and the bridge's alias says for whom."""
    for number in range(MAX_LABS):
        name = f"{PREFIX}{number}"
        if _try("link", "add", name, "type", "bridge"):
            _ip("link", "set", name, "alias", f"{os.getpid()}-{_started_at(os.getpid())}")
            _ip("address", "add", f"10.77.{number}.254/24", "dev", name)
            _ip("link", "set", name, "up")
            return number
    raise AssertionError(f"no bridge can be made: {_run('link', 'add', PREFIX, 'type', 'bridge').stderr}")


def _stale() -> list[int]:
    """Labs whose owner is gone."""
    found = []
    for path in Path("/sys/class/net").glob(f"{PREFIX}*"):
        number = path.name.removeprefix(PREFIX)
        with contextlib.suppress(OSError):
            pid, _, started_at = (path / "ifalias").read_text().strip().partition("-")
            if number.isdigit() and pid.isdigit() and _started_at(int(pid)) != started_at:
                found.append(int(number))
    return found


def _started_at(pid: int) -> str:
    """When a process began, in the kernel's own words; "" where there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return ""


def _namespaces() -> list[str]:
    return [line.split()[0] for line in _run("netns", "list").stdout.splitlines() if line.strip()]


def _pids(namespace: str) -> list[int]:
    return [int(pid) for pid in _run("netns", "pids", namespace).stdout.split()]


def _end_processes(namespace: str) -> None:
    """Kill until none is left: each look may find children that were just made."""
    deadline_s = time.monotonic() + END_TIMEOUT_S
    while (left := _pids(namespace)) and time.monotonic() < deadline_s:
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(POLL_S)


def _run(*args: str) -> Done:
    return subprocess.run(["ip", *args], capture_output=True, text=True, check=False)


def _try(*args: str) -> bool:
    return _run(*args).returncode == 0


def _ip(*args: str) -> None:
    _checked(["ip", *args])


def _checked(argv: Sequence[str]) -> None:
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(argv)}: {done.stderr.strip()}"


if __name__ == "__main__":
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    sys.stdin.buffer.read()  # until the owner closes it, or is no more
    clean(int(sys.argv[1]))
