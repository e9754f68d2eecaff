"""The member "master": the store's master of one run, on the node that the plan gives it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dspark_train.errors import StoreError
from dspark_train.peers import Peers
from dspark_train.plan.run_layout import RunLayout
from dspark_train.plan.spec import Plan, bind_process
from dspark_train.store.master_process import MasterProcess, MasterSilent
from dspark_train.store.ports import PortLock, reserve_known, reserve_ports
from dspark_train.topology.resolve import Resolved

LOOPBACK = "127.0.0.1"
FREED_TIMEOUT_S = 15.0
"""The master of an actor that was killed is ended by its watcher, at the latest after ten seconds."""
HUNG_GRACE_S = 1.0


class Master:
    """Supervises `mooncake_master`. Its ports stay reserved until it is stopped."""

    def __init__(
        self,
        run_dir: str,
        peers: Peers,
        name: str = "master",
        *,
        hung_after_s: float = 6.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """hung_after_s: how long a master may leave its admin server's callers without an answer."""
        layout = RunLayout(Path(run_dir))
        self._layout, self._name = layout, name
        self._spec = Plan.model_validate_json(layout.plan.read_text()).process(name)
        self._store = Resolved.model_validate_json(layout.resolved.read_text()).topology.store
        self._locks: dict[str, PortLock] = {}
        self._process: MasterProcess | None = None
        self._stopped = False
        self._hung_after_s, self._clock = hung_after_s, clock
        self._silent_since_s: float | None = None

    def reserve_ports(self, wanted: Mapping[str, int] | None = None) -> dict[str, int]:
        """Reserve the planned ports on this host. Returns name -> number.

        wanted: name -> number of the ports that an earlier master had, so that clients find this one where that was.
        Waits for that one to end. Raises StartError where they do not come free.
        """
        for name, port in (wanted or {}).items():
            if name not in self._locks:
                self._locks[name] = reserve_known(port, FREED_TIMEOUT_S)
        missing = [name for name in self._spec.ports if name not in self._locks]
        self._locks |= reserve_ports(missing)
        return {name: lock.port for name, lock in self._locks.items()}

    def start(self, hosts: Mapping[str, str], ports: Mapping[str, int]) -> dict[str, Any]:
        """Start the master and wait until it serves. hosts: node -> address; ports: "process.name" -> number.

        Again after its process died, or hung: it is back on the same ports, empty, and clients join it by themselves.
        Returns {"pid", "rpc": "address:port"}. Raises StartError.
        """
        if self._process and self._process.alive():
            if self.status()["state"] != "hung":
                return {"pid": self._process.pid, "rpc": self._process.rpc}
            self._process.stop(HUNG_GRACE_S)
        log = self._layout.log(self._name)
        bound = bind_process(self._spec, hosts=hosts, ports=ports, run=self._layout.name, log=str(log))
        rpc = f"{hosts[self._spec.node]}:{bound.ports['rpc']}"
        metrics = f"{_metrics_host(bound.argv)}:{bound.ports['metrics']}"
        self._process = MasterProcess(bound.argv, bound.env, log, rpc, metrics)
        self._process.start(self._store.start_timeout_s)
        self._silent_since_s = None
        return {"pid": self._process.pid, "rpc": rpc}

    def status(self) -> dict[str, Any]:
        """{"state": "starting|ready|hung|dead|stopped", "pid", "error"}, and MasterFigures' fields while it answers."""
        if self._process is None or self._stopped:
            return {"state": "stopped" if self._stopped else "starting", "pid": 0, "error": ""}
        if not self._process.alive():
            return {"state": "dead", "pid": self._process.pid, "error": str(self._process.exited())}
        try:
            figures = asdict(self._process.figures())
        except MasterSilent as error:
            self._silent_since_s = self._clock() if self._silent_since_s is None else self._silent_since_s
            is_hung = self._clock() - self._silent_since_s >= self._hung_after_s
            return {"state": "hung" if is_hung else "ready", "pid": self._process.pid, "error": str(error)}
        except StoreError as error:
            return {"state": "ready", "pid": self._process.pid, "error": str(error)}
        self._silent_since_s = None
        return {"state": "ready", "pid": self._process.pid, "error": "", **figures}

    def stop(self, grace_s: float) -> None:
        """End the master and give its ports back; twice is fine."""
        self._stopped = True
        if self._process:
            self._process.stop(grace_s)
        for lock in self._locks.values():
            lock.release()
        self._locks = {}


def _metrics_host(argv: Sequence[str]) -> str:
    """Where its HTTP server listens: the loopback interface, unless its flags say something else."""
    found = (word.partition("=")[2] for word in argv if word.lstrip("-").startswith("metrics_host="))
    return next(found, LOOPBACK)
