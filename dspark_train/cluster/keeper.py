"""The keeper of a run's own Ray: starts it, outlives the command line, and ends it when the run is over.

Every process that comes from this Ray, engines and their children included, is the keeper's descendant, also after its
parent has died (the keeper is a "child subreaper"). So it ends exactly those, by id, and nothing else on the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from dspark_train.cluster.processes import MARK, become_subreaper, end_descendants, is_alive
from dspark_train.errors import ClusterError
from dspark_train.plan.run_layout import RunLayout
from dspark_train.report.state import TERMINAL

POLL_S = 0.2
HEAD_GRACE_S = 10.0
"""What Ray gets to end by itself."""
CHILD_GRACE_S = 3.0
"""What other processes of the run get between the polite and the final signal."""
END_TIMEOUT_S = 30.0
"""After which processes that cannot be killed (stuck in the kernel) are left, and named in the log."""
CONTROLLER_GRACE_S = 20.0
"""What the controller gets to end after it has written the last state."""
ORPHAN_GRACE_S = 30.0
"""A Ray whose launcher is gone, and in which no run has begun after so long, is ended."""
SOCKET_PATH_CHARS = 107
RAY_PATH_CHARS = len("/r/session_2026-11-30_00-57-27_621060_1234567/sockets/plasma_store")


def main() -> None:
    """Keep one Ray; ends with 0 when it was ended in order, 1 if it did not start or died."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--run-dir", type=Path, required=True)
    parser.add_argument("--num-cpus", type=int, required=True)
    parser.add_argument("--launcher-pid", type=int, required=True)
    parser.add_argument("--start-timeout-s", type=float, required=True)
    args = parser.parse_args()
    keeper = Keeper(RunLayout(args.run_dir), args.num_cpus, args.launcher_pid)
    signal.signal(signal.SIGTERM, keeper.order_end)
    try:
        keeper.start(args.start_timeout_s)
        reason = keeper.watch()
    except ClusterError as error:
        _log(str(error))
        sys.exit(1)
    finally:
        keeper.end()
    _log(f"ended: {reason}")


class Keeper:
    """One local Ray, from start to end. Must be the only user of child processes in its process."""

    def __init__(self, layout: RunLayout, num_cpus: int, launcher_pid: int) -> None:
        self._layout, self._num_cpus, self._launcher_pid = layout, num_cpus, launcher_pid
        self._ordered = False
        become_subreaper()
        self._base = make_base_dir()
        self._token = self._base / "token"
        self._head: subprocess.Popen[bytes] | None = None
        self._idle_since_s = self._over_since_s = time.monotonic()

    def order_end(self, *_: Any) -> None:
        """Signal handler: end this Ray at the next look."""
        self._ordered = True

    def start(self, timeout_s: float) -> None:
        """Start the head and write `cluster.json`. Raises ClusterError."""
        fd = os.open(self._token, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        os.write(fd, secrets.token_hex(32).encode())
        os.close(fd)
        address_file = self._base / "address"
        argv = [sys.executable, "-m", "dspark_train.cluster.head", "--temp-dir", str(self._base / "r")]
        argv += ["--num-cpus", str(self._num_cpus), "--address-file", str(address_file)]
        auth = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(self._token), MARK: str(self._base)}
        self._head = subprocess.Popen(argv, stdin=subprocess.DEVNULL, env={**os.environ, **auth})
        deadline_s = time.monotonic() + timeout_s
        while not address_file.exists():
            if self._head.poll() is not None:
                raise ClusterError(f"the Ray head ended with code {self._head.returncode} while it started")
            if self._ordered:
                raise ClusterError("told to end while the Ray head started")
            if time.monotonic() > deadline_s:
                raise ClusterError(f"the Ray head was not up after {timeout_s:g} s")
            time.sleep(POLL_S)
        self._write_facts(address_file.read_text(encoding="utf-8"))

    def _write_facts(self, address: str) -> None:
        facts = {
            "address": address,
            "own": True,
            "keeper_pid": os.getpid(),
            "keeper_started_at": psutil.Process().create_time(),
            "temp_dir": str(self._base),
            "token_path": str(self._token),
            "num_cpus": self._num_cpus,
        }
        beside = self._layout.cluster.with_suffix(".new")
        beside.write_text(json.dumps(facts, indent=1), encoding="utf-8")
        os.replace(beside, self._layout.cluster)
        _log(f"Ray is up at {address}")

    def watch(self) -> str:
        """Wait until there is a reason to end; returns it. Raises ClusterError if Ray dies by itself."""
        assert self._head is not None
        while True:
            if self._ordered:
                return "told to"
            if self._head.poll() is not None:
                raise ClusterError(f"the Ray head died with code {self._head.returncode}; the run with it")
            if reason := self._look():
                return reason
            time.sleep(POLL_S)

    def _look(self) -> str:
        now_s = time.monotonic()
        state = read_state(self._layout)
        if state is not None or is_alive(self._launcher_pid):
            self._idle_since_s = now_s
        if state is None or state.get("state") not in TERMINAL:
            self._over_since_s = now_s
        controller = int(((state or {}).get("controller") or {}).get("pid") or 0)
        return reason_to_end(
            state,
            idle_s=now_s - self._idle_since_s,
            over_s=now_s - self._over_since_s,
            controller_alive=controller > 0 and is_alive(controller),
        )

    def end(self) -> None:
        """End every process of this Ray and remove its directory."""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if self._head is not None:
            self._head.terminate()
            try:
                self._head.wait(HEAD_GRACE_S)
            except subprocess.TimeoutExpired:
                _log(f"the Ray head did not end within {HEAD_GRACE_S:g} s")
        if left := end_descendants(END_TIMEOUT_S, CHILD_GRACE_S):
            _log(f"processes that do not end: {', '.join(str(process.pid) for process in left)}")
        shutil.rmtree(self._base, ignore_errors=True)


def reason_to_end(state: Mapping[str, Any] | None, *, idle_s: float, over_s: float, controller_alive: bool) -> str:
    """Why the Ray of a run in this state has to end now; "" while it has to live.

    state: of `state.json`, None before it exists. idle_s: for how long there has been neither a state nor a launcher;
    over_s: for how long the state has been a last one.
    """
    if state is None:
        return "the launcher is gone and no run has begun" if idle_s > ORPHAN_GRACE_S else ""
    if state.get("state") not in TERMINAL:
        return ""
    if controller_alive and over_s <= CONTROLLER_GRACE_S:
        return ""
    return f"the run is {state['state']}"


def make_base_dir() -> Path:
    """A directory of our own (0700) whose path is short enough for the sockets that Ray makes below it."""
    root = tempfile.gettempdir()
    if len(root) + len("/dspark-12345678") + RAY_PATH_CHARS > SOCKET_PATH_CHARS:
        root = "/tmp"
    return Path(tempfile.mkdtemp(prefix="dspark-", dir=root))


def read_state(layout: RunLayout) -> dict[str, Any] | None:
    """What the controller last wrote; None before it wrote anything."""
    try:
        state: dict[str, Any] = json.loads(layout.state.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None
    return state


def _log(text: str) -> None:
    print(f"{time.strftime('%Y-%m-%dT%H:%M:%S')} keeper: {text}", flush=True)


if __name__ == "__main__":
    main()
