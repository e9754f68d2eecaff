"""Ending processes by id, and telling the living from the dead. Nothing here looks for processes by name."""

from __future__ import annotations

import contextlib
import ctypes
import signal
import time
from collections.abc import Iterable

import psutil

MARK = "DSPARK_LOCAL_RAY"
"""Environment variable that every process of a local Ray inherits; its value is that Ray's own directory."""
PR_SET_CHILD_SUBREAPER = 36
PR_SET_PDEATHSIG = 1


def is_alive(pid: int) -> bool:
    """Whether a process of that id runs; one that has ended and was not yet reaped does not."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def same_process(pid: int, started_at_s: float) -> psutil.Process | None:
    """The living process of that id if it began then; None if the id is free or was taken by another since."""
    try:
        process = psutil.Process(pid)
        same = abs(process.create_time() - started_at_s) < 1.0
        return process if same and process.status() != psutil.STATUS_ZOMBIE else None
    except psutil.NoSuchProcess:
        return None


def marked_processes(value: str) -> list[psutil.Process]:
    """The living processes that inherited ``MARK=value``."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == value and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue  # ended meanwhile, or another user's: not ours
    return found


def end_processes(processes: Iterable[psutil.Process], grace_s: float) -> None:
    """SIGTERM, then SIGKILL for those still there after ``grace_s``; returns when all are gone or were given up."""
    processes = list(processes)
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.terminate()
    _, alive = psutil.wait_procs(processes, timeout=grace_s)
    for process in alive:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(alive, timeout=grace_s)


def become_subreaper() -> None:
    """Let every process that comes from this one stay its descendant, also after its own parent has died."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def die_with_parent() -> None:
    """Get SIGTERM when the thread that started this process ends. Called in the child, before its program begins."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def end_descendants(timeout_s: float, grace_s: float) -> list[psutil.Process]:
    """End every descendant of this process, a subreaper's. Returns those that are still there after ``timeout_s``."""
    # Orphans become children of this process as their parents end, so one look is not enough.
    deadline_s = time.monotonic() + timeout_s
    while left := psutil.Process().children(recursive=True):
        if time.monotonic() > deadline_s:
            return left
        end_processes(left, grace_s)
    return []
