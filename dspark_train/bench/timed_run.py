"""A run launched as a user would, its sides on a core each, timed from the end of one step to the end of the last.

The window begins when the members of both sides are on their cores and a few steps were done after that.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import psutil

from dspark_train.bench.members import ENGINE_CORE, TRAINER_CORE
from dspark_train.errors import StartError
from dspark_train.plan.run_layout import RunLayout

NUM_WARM_UP_STEPS, MIN_TIMED_STEPS = 3, 20
LOOK_S, CALM_LOOK_S = 0.05, 0.5
"""How often a run is looked at until its window begins, and then: when a step ended is told by its file."""
RUN_TIMEOUT_S, STOP_TIMEOUT_S = 900.0, 60.0
CORES = {"engine": ENGINE_CORE, "rank": TRAINER_CORE}
"""Of the members of a run whose names begin so."""


def run_tokens_per_s(topology: Path, sets: Sequence[str], runs: Path, name: str, num_steps: int) -> float:
    """Launch the run, keep its sides on their cores, and tell its tokens a second after the first few steps."""
    with launched(topology, sets, runs, name, RUN_TIMEOUT_S) as (layout, process):
        return _watched(layout, process, num_steps)


@contextmanager
def launched(
    topology: Path, sets: Sequence[str], runs: Path, name: str, timeout_s: float
) -> Iterator[tuple[RunLayout, subprocess.Popen[bytes]]]:
    """A run under way: its directory, and the process that follows it. Waits for its end on leaving, ends it on errors.

    Raises StartError where it does not end well.
    """
    runs.mkdir(parents=True, exist_ok=True)
    options = [part for value in sets for part in ("--set", value)]
    log = runs / f"{name}.log"
    with log.open("wb") as stream:
        process = _command(runs, stream, "launch", "--topology", str(topology), "--name", name, *options)
        try:
            yield RunLayout(runs / name), process
        except BaseException:
            with suppress(subprocess.TimeoutExpired):
                _command(runs, stream, "stop", "--now", name).wait(STOP_TIMEOUT_S)
                process.wait(STOP_TIMEOUT_S)
            process.kill()
            raise
    if process.wait(timeout_s):
        raise StartError(f"the run ended with code {process.returncode}", str(log), log.read_text().splitlines()[-15:])


def _command(runs: Path, stream: IO[bytes], *args: str) -> subprocess.Popen[bytes]:
    argv = [sys.executable, "-m", "dspark_train.cli.app", *args]
    return subprocess.Popen(argv, env={**os.environ, "DSPARK_RUNS": str(runs)}, stdout=stream, stderr=stream)


@dataclass
class Window:
    """The steps that a run of ``num_steps`` is timed over: from the end of one step to the end of the last."""

    num_steps: int
    _first: int | None = None
    began: tuple[int, float] | None = None
    """How many steps were done, and when the last of them was."""

    def look(self, num_done: int, at_s: float) -> None:
        """All sides are on their cores, and the last of so many steps was done then: the window begins when warm.

        Raises StartError where too few steps are left.
        """
        if self._first is None:
            self._first = num_done
        if self.began is None and num_done >= self._first + NUM_WARM_UP_STEPS:
            if self.num_steps - num_done < MIN_TIMED_STEPS:
                raise StartError(
                    f"of {self.num_steps} steps {num_done} were done when the run was on its cores and warm, and "
                    f"{MIN_TIMED_STEPS} are timed at least: raise --steps"
                )
            self.began = num_done, at_s

    def tokens_per_s(self, tokens: Sequence[int], at_s: float) -> float:
        """tokens: of each step. Raises StartError where the window never began."""
        if self.began is None:
            raise StartError(f"the run's {self.num_steps} steps were over before it was on its cores: raise --steps")
        num_done, began_s = self.began
        return sum(tokens[num_done : self.num_steps]) / (at_s - began_s)


def _watched(layout: RunLayout, process: subprocess.Popen[bytes], num_steps: int) -> float:
    """Pin members as they come up; the rate over the window, by the times at which the ledger wrote the steps."""
    window = Window(num_steps)
    deadline_s = time.monotonic() + RUN_TIMEOUT_S
    while time.monotonic() < deadline_s:
        is_pinned = window.began is not None or _pin_members(layout)
        at_s, lines = _steps(layout.metrics)
        if is_pinned:
            window.look(len(lines), at_s)
        if len(lines) >= num_steps:
            return window.tokens_per_s([json.loads(line)["tokens"] for line in lines], at_s)
        if process.poll() is not None:
            break
        time.sleep(LOOK_S if window.began is None else CALM_LOOK_S)
    raise StartError(f"the run did not do {num_steps} steps", str(layout.events))


def _steps(metrics: Path) -> tuple[float, list[bytes]]:
    """When the last step's line was written, and the lines."""
    if not metrics.exists():
        return 0.0, []
    with metrics.open("rb") as file:
        facts = os.fstat(file.fileno())
        return facts.st_mtime, file.read(facts.st_size).splitlines()


def _pin_members(layout: RunLayout) -> bool:
    """Keep the members of both sides, as far as they are there, on their cores; whether both are."""
    found = {side for pid, side in _writers(layout.logs.resolve()) if side in CORES and pin_tree(pid, CORES[side])}
    return found == set(CORES)


def _writers(logs: Path) -> Iterator[tuple[int, str]]:
    """Processes that print into a member's log, which they do from their first line on; the name up to its number."""
    for pid in psutil.pids():
        with suppress(OSError):
            log = Path(os.readlink(f"/proc/{pid}/fd/1"))
            if log.parent == logs:
                yield pid, log.name.partition("-")[0]


def pin_tree(pid: int, core: int) -> bool:
    """Keep a process, its children and all their threads on one core; whether it was there."""
    try:
        process = psutil.Process(pid)
        for each in (process, *process.children(recursive=True)):
            for thread in each.threads():
                os.sched_setaffinity(thread.id, {core})
    except (psutil.Error, OSError):
        return False
    return True
