"""Runs one scenario: launches it as a user would, does what its faults say, waits for the end. Judges nothing."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from dspark_train.engine.stand_in import PACE_VARIABLE
from dspark_train.trainer.checkpoint_files import problems
from tests.faults.inputs import LIES, STEP_TOKENS
from tests.faults.processes import NotFound, find
from tests.faults.progress import Progress
from tests.faults.scenario import Fault, Scenario
from tests.real.line import Line

POLL_S = 0.05
START_TIMEOUT_S = 180.0
"""From the launch to the first step, on a machine that is busy with others."""
END_TIMEOUT_S = 400.0
"""From the last fault to the end of the run, beyond the paced steps that are left then."""
STEPS_PATIENCE = 1.5
"""These may take so many times as long as they are paced."""
ENGINE_LEAD = 1.3
"""How much faster than the ranks an engine is."""
MIN_ENGINE_TOKENS_PER_S = 400
"""What is in flight to an engine then ends well within any request's time-out."""
LEFT_TIMEOUT_S = 30.0
"""From the end of a run until its processes are gone."""
PATIENCE = 4.0
"""So many times what a recovery may take is waited for it, so that the table has a figure."""
CHANGE_TIMEOUT_S = 120.0
"""A rank or an engine that is to come takes seconds, on a machine that is busy with others much longer."""


@dataclass
class Row:
    """What became of one fault. Times in seconds after it; None: it did not come."""

    fault: Fault
    at_step: int
    at_s: float
    """Wall clock."""
    num_regenerated: int = 0
    """Samples that had been made anew before."""
    done_s: float = 0.0
    """When it was done, wall clock: an order takes its time."""
    problem: str = ""
    detected_after_s: float | None = None
    repaired_after_s: float | None = None
    well_after_s: float | None = None
    stood_still_s: float = 0.0
    """The longest time between two steps meanwhile, beyond what a step usually takes."""
    journal: str = ""
    """What the journal said first."""
    until_s: float = 0.0
    status_code: int | None = None


@dataclass
class Outcome:
    """A run that has ended."""

    scenario: Scenario
    rows: list[Row]
    steps: list[dict[str, Any]]
    rounds: list[dict[str, Any]]
    state: dict[str, Any]
    events: list[dict[str, Any]]
    start_s: float
    """From the launch to the first step."""
    slowness: float
    left: list[str]
    """Processes that outlive the run."""
    checkpoint_problems: list[str]
    """What is wrong with the newest checkpoint."""


def play(line: Line, scenario: Scenario, slowness: float = 1.0) -> Outcome:
    """Run ``scenario`` to its end. Raises AssertionError where not even that works.

    slowness: of the machine; see `scenario.slowness`.
    """
    launched_s = time.time()
    root = line.root / "runs" / scenario.name
    (line.root / LIES).write_text("")
    pace = _pace(scenario.step_s * slowness)
    sets = (f"run.max_steps={scenario.num_steps}", *pace, *scenario.base, *scenario.overrides)
    started = line.launch(scenario.name, *sets, options=("--detach",))
    assert started.returncode == 0, started.stdout + started.stderr
    progress = Progress(root)
    try:
        with Disk(root / "checkpoints", scenario.disk_mib) as disk:
            rows = Player(line, scenario, progress, disk, slowness).play()
            paced_s = (scenario.num_steps - progress.step) * scenario.step_s * slowness
            timeout_s = END_TIMEOUT_S + STEPS_PATIENCE * paced_s
            _wait(progress.is_over, timeout_s, f"{scenario.name} did not end\n{line.tail(scenario.name)}")
            left = line.left(LEFT_TIMEOUT_S)
            checkpoint_problems = problems((root / "checkpoints" / "latest").resolve())
    finally:
        progress.close()
    for row in rows:
        _measure(row, progress)
    return Outcome(
        scenario,
        rows,
        _lines(root / "metrics.jsonl"),
        _lines(root / "validation.jsonl"),
        progress.state(),
        progress.events(),
        progress.first_s - launched_s,
        slowness,
        left,
        checkpoint_problems,
    )


def _pace(step_s: float) -> tuple[str, ...]:
    """Overrides that pace the ranks, and the engines a little above: these then never idle when a fault comes."""
    if not step_s:
        return ()
    tokens_per_s = max(MIN_ENGINE_TOKENS_PER_S, ENGINE_LEAD * STEP_TOKENS / step_s)
    return f"trainers.min_step_s={step_s:.2f}", f"engines.env.{PACE_VARIABLE}='{tokens_per_s:.0f}'"


class Player:
    """Does the faults of a scenario, one after the other."""

    def __init__(self, line: Line, scenario: Scenario, progress: Progress, disk: Disk, slowness: float) -> None:
        self._line, self._scenario, self._progress, self._disk = line, scenario, progress, disk
        self._slowness = slowness
        self._timers: list[threading.Timer] = []

    def play(self) -> list[Row]:
        """All faults, each once the one before is dealt with."""
        rows: list[Row] = []
        for fault in self._scenario.faults:
            timeout_s = START_TIMEOUT_S + fault.at_step * 10.0
            self._wait(lambda step=fault.at_step: self._progress.step >= step, timeout_s)
            row = Row(fault, self._progress.step, time.time(), self._num_regenerated())
            rows.append(row)
            if self._progress.is_over():
                row.problem = "the run had ended before"
                continue
            try:
                self._do(fault)
            except (NotFound, psutil.NoSuchProcess) as error:
                row.problem = str(error)
            row.done_s = time.time()
            following = self._scenario.faults[len(rows) : len(rows) + 1]
            if not (following and following[0].overlaps):
                self._settle(rows)
        for timer in self._timers:
            timer.join()
        return rows

    def _do(self, fault: Fault) -> None:
        if fault.what == "kill":
            self._find(fault.whom).kill()
        elif fault.what == "stop":
            self._stop(self._find(fault.whom), fault.for_s)
        elif fault.what == "scale":
            ordered = self._line.run("scale", self._scenario.name, *fault.orders)
            assert ordered.returncode == 0, ordered.stdout + ordered.stderr
        elif fault.what == "lie":
            order = {"mode": fault.mode, "count": fault.count}
            (self._line.root / LIES).write_text(json.dumps(order))
        elif fault.what == "fill_disk":
            self._disk.fill()
        elif fault.what == "free_disk":
            self._disk.free()

    def _find(self, whom: str) -> psutil.Process:
        return find(self._line, self._scenario.name, whom)

    def _stop(self, process: psutil.Process, for_s: float | None) -> None:
        process.suspend()
        if for_s is not None:
            timer = threading.Timer(for_s, _continue, [process])
            timer.daemon = True
            timer.start()
            self._timers.append(timer)

    def _settle(self, rows: list[Row]) -> None:
        """Wait until the last fault, and those that it overlapped, are dealt with."""
        together = [rows[-1]]
        while together[0].fault.overlaps:
            together.insert(0, rows[-len(together) - 1])
        row = rows[-1]
        timeout_s = CHANGE_TIMEOUT_S + PATIENCE * self._scenario.recovered_within_s * self._slowness
        timeout_s += row.fault.for_s or 0.0
        self._wait(lambda: self._is_dealt_with(row, together), timeout_s)
        if not self._is_dealt_with(row, together) and not row.problem:
            row.problem = f"the run was not well {time.time() - row.at_s:.0f} s after"
        for one in together:
            one.until_s = time.time()
            one.well_after_s = one.until_s - one.at_s
        if row.fault.status_code:
            row.status_code, _ = self._line.status(self._scenario.name)

    def _is_dealt_with(self, row: Row, together: list[Row]) -> bool:
        """together: this fault, and those that it overlapped."""
        fault, since_s = row.fault, row.done_s + (row.fault.for_s or 0.0)
        if fault.repaired_by and _first(self._progress, together[0].at_s, fault.repaired_by) is None:
            return False
        if fault.is_found and self._num_regenerated() < row.num_regenerated + fault.count:
            return False
        orders = [one for one in together if one.fault.what == "scale"]
        if any(_order_ended(self._progress.events(one.at_s)) is None for one in orders):
            return False
        if time.time() < since_s + POLL_S or self._progress.step <= row.at_step:
            return False
        return bool(fault.status_code) or self._progress.is_well(since_s + 1.0)

    def _num_regenerated(self) -> int:
        return int(self._progress.state()["ledger"]["regenerated"])

    def _wait(self, is_true: Callable[[], bool], timeout_s: float) -> None:
        """Until ``is_true`` or the run has ended; what is then wrong is seen at the end."""
        deadline_s = time.monotonic() + timeout_s
        while not is_true() and not self._progress.is_over() and time.monotonic() < deadline_s:
            time.sleep(POLL_S)


class Disk:
    """A small disk of its own for checkpoints, or none. Needs root. A context manager."""

    def __init__(self, path: Path, size_mib: int | None) -> None:
        self._path, self._size_mib = path, size_mib

    def __enter__(self) -> Disk:
        if self._size_mib is not None:
            self._path.mkdir(parents=True, exist_ok=True)
            options = f"size={self._size_mib}m"
            subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(self._path)], check=True)
        return self

    def fill(self) -> None:
        """Leave nothing free."""
        with suppress(OSError), self._filler.open("wb", buffering=0) as file:
            while file.write(bytes(4096)):
                pass

    def free(self) -> None:
        """Give back what `fill` took."""
        self._filler.unlink()

    def __exit__(self, *_: object) -> None:
        if self._size_mib is not None:
            subprocess.run(["umount", "--lazy", str(self._path)], check=True)

    @property
    def _filler(self) -> Path:
        return self._path / ".filler"


def _measure(row: Row, progress: Progress) -> None:
    """Fill in the figures of a fault that was dealt with."""
    fault = row.fault
    until_s = row.until_s or row.at_s
    row.stood_still_s = max(0.0, progress.longest_gap_s(row.at_s, until_s) - progress.usual_s())
    told = [event for event in progress.events(row.at_s) if event["kind"] not in QUIET and event["at_s"] <= until_s + 1]
    if told:
        row.detected_after_s, row.journal = told[0]["at_s"] - row.at_s, f"{told[0]['kind']}: {told[0]['text']}"
    if fault.repaired_by and (at_s := _first(progress, row.at_s, fault.repaired_by)) is not None:
        row.repaired_after_s = at_s - row.at_s


QUIET = ("run.phase", "validation.done", "checkpoint.saved")
"""Events that say nothing of a fault."""


def _order_ended(events: list[dict[str, Any]]) -> dict[str, Any] | None:
    return next((event for event in events if event["kind"] in ("scale.done", "scale.rolled_back")), None)


def _first(progress: Progress, after_s: float, kind: str) -> float | None:
    return next((event["at_s"] for event in progress.events(after_s) if event["kind"] == kind), None)


def _continue(process: psutil.Process) -> None:
    with suppress(psutil.NoSuchProcess):  # it may have been given up and ended meanwhile
        process.resume()


def _wait(is_true: Callable[[], bool], timeout_s: float, problem: str) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not is_true():
        assert time.monotonic() < deadline_s, problem
        time.sleep(POLL_S)


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []
