"""The resident memory of a run's rank against what the plan says that it holds: ring of packs, draft, optimizer state.

The rank is that of a run launched as a user would, on CPU. From its peak is taken what a bare rank takes, and what of
its segment may be filled: that is memory which the user gives to the store.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dspark_train.bench import bare_rank
from dspark_train.bench.children import Child
from dspark_train.bench.members import write_run
from dspark_train.bench.resident import Resident, reset_peak, resident
from dspark_train.bench.timed_run import launched
from dspark_train.errors import StartError, UsageError
from dspark_train.plan.run_layout import RunLayout
from dspark_train.plan.spec import Plan
from dspark_train.topology.resolve import Resolved

STRETCH_STEPS = 50
MIN_STEPS = 2 * STRETCH_STEPS
MORE_STEPS = 10
"""Trained after the last stretch, so that the run's last checkpoint is not in it."""
LOOK_S = 0.05
RUN_TIMEOUT_S = 3600.0
PHASES = {"rank.ready": "draft_built", "group.formed": "group_formed"}
"""Events of the journal after which the rank's memory is looked at."""


@dataclass
class Stretches:
    """Peaks by stretches of STRETCH_STEPS steps; the first has the start in it."""

    peaks: list[int] = field(default_factory=list)
    rest: int = 0
    """The peak since the last stretch that is over."""

    def look(self, num_done: int, peak_bytes: int) -> bool:
        """So many steps are done, and so much was the peak since it was reset. Whether it is to be reset now."""
        self.rest = max(self.rest, peak_bytes)
        if num_done < STRETCH_STEPS * (len(self.peaks) + 1):
            return False
        self.peaks.append(self.rest)
        self.rest = 0
        return True


@dataclass
class Seen:
    """What was seen of a run's rank: resident at the end of each phase, peaks by stretches, mapped files at the end."""

    phases: dict[str, int] = field(default_factory=dict)
    stretches: Stretches = field(default_factory=Stretches)
    file_bytes: int = 0


def checked_steps(resolved: Resolved, num_steps: int) -> int:
    """The steps of the run that is launched. Raises UsageError for what cannot be measured."""
    if resolved.device != "cpu" or resolved.mode != "online":
        raise UsageError(
            "bench memory measures a rank on CPU that reads from Mooncake: elsewhere its draft lies elsewhere"
        )
    if num_steps < MIN_STEPS:
        raise UsageError(f"bench memory needs --steps {MIN_STEPS} or more, to tell growth from the start")
    return num_steps // STRETCH_STEPS * STRETCH_STEPS + MORE_STEPS


def measure(topology: Path, sets: Sequence[str], run: tuple[Resolved, Plan]) -> dict[str, Any]:
    """sets: of the run, `pipeline.overrides` of `checked_steps` included. Raises StartError and what ends a member."""
    with tempfile.TemporaryDirectory(prefix="dspark-bench-") as root:
        layout = write_run(Path(root) / "bare", *run)
        with closing(Child(bare_rank.__name__, layout.log("bench"))) as child:
            bare = child.ask("measure", run_dir=str(layout.root))
        with launched(topology, sets, Path(root) / "runs", "memory", RUN_TIMEOUT_S) as (layout, process):
            seen = _watched(layout, process)
    return figures(*run, bare, seen)


def figures(resolved: Resolved, plan: Plan, bare: Mapping[str, int], seen: Seen) -> dict[str, Any]:
    """What is reported: the terms, what is left beside them, and how the peak grew. Raises StartError."""
    ring, state = plan.capacity.ring_bytes, plan.capacity.draft_state_bytes
    peaks = seen.stretches.peaks
    if ring is None or state is None or len(peaks) < MIN_STEPS // STRETCH_STEPS:
        raise StartError("the plan does not know the size of ring and draft" if peaks else "the run was too short")
    segment = round(resolved.segment_bytes * resolved.topology.store.high_mark_frac)
    own = max(peaks) - bare["rss_bytes"] - segment
    with_checkpoint = max(own, seen.stretches.rest - bare["rss_bytes"] - segment)
    return {
        "steps": STRETCH_STEPS * len(peaks),
        "peak_bytes": max(peaks),
        "libraries_bytes": bare["rss_bytes"],
        "segment_bytes": segment,
        "ring_bytes": ring,
        "draft_and_optimizer_bytes": state,
        "rest_bytes": own - ring - state,
        "code_paged_in_bytes": seen.file_bytes - bare["file_bytes"],
        "own_over_planned": own / (ring + state),
        "own_over_planned_at_a_checkpoint": with_checkpoint / (ring + state),
        **{f"{phase}_bytes": num_bytes for phase, num_bytes in seen.phases.items()},
        "peak_of_steps_51_to_100_bytes": peaks[1],
        "peak_of_the_last_50_steps_bytes": peaks[-1],
        "growth": peaks[-1] / peaks[1] - 1,
        "peaks": peaks,
    }


def _watched(layout: RunLayout, process: subprocess.Popen[bytes]) -> Seen:
    """Look at rank 0 until it or the run has ended."""
    seen, pid = Seen(), 0
    deadline_s = time.monotonic() + RUN_TIMEOUT_S
    while process.poll() is None:
        if time.monotonic() > deadline_s:
            raise StartError(f"the run did not end within {RUN_TIMEOUT_S:g} s", str(layout.events))
        if len(seen.phases) < len(PHASES):
            pid = _note_phases(layout, seen, pid)
        if pid and (memory := _memory(pid)) is not None:
            seen.file_bytes = memory.file_bytes
            num_done = layout.metrics.read_bytes().count(b"\n") if layout.metrics.exists() else 0
            if seen.stretches.look(num_done, memory.peak_bytes):
                reset_peak(pid)
        time.sleep(LOOK_S)
    return seen


def _note_phases(layout: RunLayout, seen: Seen, pid: int) -> int:
    """Note the rank's memory where a phase is over; returns its process, 0 while that is not known."""
    lines = layout.events.read_text(encoding="utf-8").splitlines() if layout.events.exists() else []
    for event in map(json.loads, lines):
        phase, pid = PHASES.get(event["kind"]), event.get("pid", pid) if event["kind"] == "rank.ready" else pid
        if phase is not None and phase not in seen.phases and (memory := _memory(pid)) is not None:
            seen.phases[phase] = memory.rss_bytes
    return pid


def _memory(pid: int) -> Resident | None:
    try:
        return resident(pid)
    except OSError:
        return None
