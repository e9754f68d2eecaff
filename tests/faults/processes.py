"""Which process is meant by "engine-1 worker" or "master actor", found as a person with `ps` would.

Sends no signal: that is for who asks.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from tests.real.line import MARK, Line

FIND_TIMEOUT_S = 60.0
"""A process that is just being replaced comes back within this."""
POLL_S = 0.05
RAY_TITLE = "ray::"
"""What the title of an actor's process begins with."""


class NotFound(AssertionError):
    """There is no such process."""


def find(line: Line, run: str, whom: str, timeout_s: float = FIND_TIMEOUT_S) -> psutil.Process:
    """The process ``whom``, waiting for it to come where it is not there. Raises NotFound.

    "engine-1 api" and "engine-1 worker" are the process that answers requests and its child, "engine-1 actor" the one
    that supervises them; "rank-0", "ledger" and "controller" are actors; "master process" is the store's master, and
    "master actor" what supervises it.
    """
    deadline_s = time.monotonic() + timeout_s
    while True:
        found = _look(line, run, whom)
        if found is not None:
            return found
        if time.monotonic() > deadline_s:
            raise NotFound(f"there is no process {whom} of {run}")
        time.sleep(POLL_S)


def _look(line: Line, run: str, whom: str) -> psutil.Process | None:
    name, _, part = whom.partition(" ")
    log = line.root / "runs" / run / "logs" / f"{_member(name)}.log"
    actor = next((p for p in _marked(line) if _is_actor(p) and _prints_to(p, log)), None)
    if part in ("", "actor") or actor is None:
        return actor
    children = _children(actor)
    if part == "process":
        return next(iter(children), None)
    api = next((child for child in children if "serve" in _command(child)), None)
    if part == "api" or api is None:
        return api
    return next(iter(_children(api)), None)


def _member(name: str) -> str:
    """The member's log is named after its first process, for an engine."""
    return f"{name}.0" if name.startswith("engine-") else name


def _marked(line: Line) -> Iterator[psutil.Process]:
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == line.mark:
                yield process
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue


def _is_actor(process: psutil.Process) -> bool:
    return any(word.startswith(RAY_TITLE) for word in _command(process)[:1])


def _prints_to(process: psutil.Process, log: Path) -> bool:
    try:
        return os.readlink(f"/proc/{process.pid}/fd/1") == str(log)
    except OSError:
        return False


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return []


def _children(process: psutil.Process) -> list[psutil.Process]:
    try:
        return [child for child in process.children() if child.status() != psutil.STATUS_ZOMBIE]
    except psutil.NoSuchProcess:
        return []
