"""When each step was committed, and how the run says it is: read from its files while it goes on."""

from __future__ import annotations

import json
import threading
import time
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from dspark_train.controller import journal
from dspark_train.report.state import TERMINAL

POLL_S = 0.05


class Progress:
    """Watches a run's files from a thread of its own. Close it."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._steps: list[tuple[float, int]] = []
        """(wall clock, step) at which a step was first seen that is later than all before it."""
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="progress", daemon=True)
        self._thread.start()

    # -- steps -----------------------------------------------------------------------------------------------------

    @property
    def step(self) -> int:
        """The last step that was committed, also where the run has gone back behind it."""
        return self._steps[-1][1] if self._steps else 0

    @property
    def first_s(self) -> float:
        """When the first step was committed, wall clock; now, where none was."""
        return self._steps[0][0] if self._steps else time.time()

    def usual_s(self) -> float:
        """What a step takes, the median."""
        return median(later - earlier for (earlier, _), (later, _) in pairwise(self._steps))

    def longest_gap_s(self, from_s: float, to_s: float) -> float:
        """The longest time between two steps of those that overlap these times, without what lies after ``to_s``."""
        gaps = [
            min(later, to_s) - earlier
            for (earlier, _), (later, _) in pairwise(self._steps)
            if later >= from_s and earlier <= to_s
        ]
        return max(gaps, default=0.0)

    def _watch(self) -> None:
        path, size = self._root / "metrics.jsonl", -1
        while not self._over.wait(POLL_S):
            now_size = path.stat().st_size if path.exists() else 0
            if now_size == size:
                continue
            size, num = now_size, path.read_bytes().count(b"\n") if path.exists() else 0
            if num > self.step:
                self._steps.append((time.time(), num))

    def close(self) -> None:
        """End the thread; what was seen stays."""
        self._over.set()
        self._thread.join()

    # -- what the run says -----------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """`state.json`, {} where there is none."""
        try:
            return dict(json.loads((self._root / "state.json").read_text(encoding="utf-8")))
        except FileNotFoundError:
            return {}

    def is_over(self) -> bool:
        """Whether the run has ended, well or badly."""
        return self.state().get("state") in TERMINAL

    def is_well(self, after_s: float) -> bool:
        """Whether the run, in a state written after this time, lacks nothing and is not changing."""
        state = self.state()
        if not state or datetime.fromisoformat(state["written_at"]).timestamp() <= after_s:
            return False
        is_whole = all(
            pool["ready"] == pool["desired"] and not pool["draining"] and not pool["pending"]
            for pool in state["pools"].values()
        )
        is_changing = (state["transaction"] or {}).get("state") == "running"
        return state["state"] == "running" and is_whole and not is_changing and not state["faults"]

    def events(self, after_s: float = 0.0) -> list[dict[str, Any]]:
        """The journal from this time on, each event with its time in seconds as ``at_s``."""
        found = journal.read(self._root / "events.jsonl")
        stamped = [{**event, "at_s": datetime.fromisoformat(event["at"]).timestamp()} for event in found]
        return [event for event in stamped if event["at_s"] >= after_s]
