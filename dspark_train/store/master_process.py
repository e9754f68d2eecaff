"""`mooncake_master` as a child: start, readiness, figures, end. Knows nothing of runs."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx

from dspark_train.errors import StartError, StoreError
from dspark_train.store.child import ChildProcess
from dspark_train.store.on_mooncake import LIBRARIES_REMEDY
from dspark_train.store.ports import AddressInUse, bindable

POLL_S = 0.05
HTTP_TIMEOUT_S = 2.0
STOP_GRACE_S = 5.0
_GAUGE = re.compile(r"^(master_\w+) ([0-9.e+-]+)$", re.MULTILINE)
_MISSING_LIBRARY = re.compile(r"error while loading shared libraries: (\S+):")


class MasterSilent(StoreError):
    """The master's process runs, and does not answer."""


@dataclass(frozen=True, slots=True)
class MasterFigures:
    """What the master's own metrics say."""

    capacity_bytes: int
    used_bytes: int
    num_keys: int
    num_evicted: int
    num_clients: int


def parse_figures(text: str) -> MasterFigures:
    """Read the figures out of /metrics. Raises StoreError naming one that is not there."""
    values = {name: float(value) for name, value in _GAUGE.findall(text)}

    def figure(name: str) -> int:
        if name not in values:
            raise StoreError(f"mooncake_master's /metrics has no {name}: is it of version 0.3.13?")
        return int(values[name])

    return MasterFigures(
        capacity_bytes=figure("master_total_capacity_bytes"),
        used_bytes=figure("master_allocated_bytes"),
        num_keys=figure("master_key_count"),
        num_evicted=figure("master_evicted_key_count"),
        num_clients=figure("master_active_clients"),
    )


class MasterProcess:
    """One `mooncake_master`. rpc: ``address:port`` of clients; metrics: ``address:port`` of its HTTP admin server."""

    def __init__(self, argv: Sequence[str], env: Mapping[str, str], log: Path, rpc: str, metrics: str) -> None:
        self.rpc = rpc
        self._ports = [int(address.rpartition(":")[2]) for address in (rpc, metrics)]
        self._metrics_url = f"http://{metrics}"
        self._child = ChildProcess(argv, env, log)

    @property
    def pid(self) -> int:
        return self._child.pid

    def alive(self) -> bool:
        return self._child.alive()

    def start(self, timeout_s: float) -> None:
        """Start it and wait until it serves. Raises StartError (AddressInUse) with the log's last lines."""
        self._child.start()
        deadline_s = time.monotonic() + timeout_s
        while not self._serving():
            if self._child.wait(POLL_S):
                raise self.exited()
            if time.monotonic() > deadline_s:
                self._child.stop(STOP_GRACE_S)
                raise self._failure(f"mooncake_master did not serve {self.rpc} within {timeout_s:g} s")

    def figures(self) -> MasterFigures:
        """Its figures now. Raises MasterSilent where it does not answer, StoreError where it answers something else."""
        try:
            answer = httpx.get(f"{self._metrics_url}/metrics", timeout=HTTP_TIMEOUT_S, trust_env=False)
        except httpx.HTTPError as error:
            raise MasterSilent(f"mooncake_master does not answer at {self._metrics_url}: {error}") from error
        return parse_figures(answer.text)

    def stop(self, grace_s: float) -> None:
        """End it; twice is fine."""
        self._child.stop(grace_s)

    def exited(self) -> StartError:
        """The error for a master that ended by itself."""
        return self._failure(f"mooncake_master exited with code {self._child.exit_code()}")

    def _failure(self, what: str) -> StartError:
        lines = self._child.last_lines()
        log = str(self._child.log)
        if missing := next((m.group(1) for line in lines if (m := _MISSING_LIBRARY.search(line))), ""):
            return StartError(f"{what}: {missing} is missing. {LIBRARIES_REMEDY}", log, lines)
        if taken := [port for port in self._ports if not self._child.alive() and not bindable(port)]:
            # it says nothing itself: it exits with code 1
            return AddressInUse(f"{what}: somebody else listens on port {taken[0]}", log, lines)
        return StartError(what, log, lines)

    def _serving(self) -> bool:
        # Its admin server answers for a second before it ends over a taken RPC port: whose port it is, is asked too.
        if self._ports[0] not in self._child.listening_ports():
            return False
        try:
            answer = httpx.get(f"{self._metrics_url}/health", timeout=HTTP_TIMEOUT_S, trust_env=False)
        except httpx.HTTPError:
            return False
        return answer.status_code == httpx.codes.OK and bool(answer.json().get("service_ready"))
