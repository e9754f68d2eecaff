"""Keeps the run's history and totals while the API is open: samples the state, and reads what the run's files gain.

Bounded in memory, whatever the run's length. The history is on disk twice a minute and at the end, so that a controller
started anew goes on with it and the report has it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dspark_train.plan.run_layout import RunLayout
from dspark_train.report.history import History
from dspark_train.report.metrics import Totals
from dspark_train.report.state import RunState

SAMPLE_S = 1.0
WRITE_S = 30.0
CHUNK_BYTES = 1 << 20
"""At most so much of a file is read at a time: the event loop must not stand still."""
logger = logging.getLogger(__name__)


@dataclass
class Tail:
    """Reads the lines that a file of JSON lines gains; begins anew where it was cut."""

    path: Path
    offset: int = 0

    def read(self) -> tuple[list[dict[str, Any]], bool]:
        """New whole lines, and whether the file was begun anew."""
        try:
            size_bytes = self.path.stat().st_size
        except FileNotFoundError:
            return [], False
        is_anew = size_bytes < self.offset
        if is_anew:
            self.offset = 0
        with self.path.open("rb") as file:
            file.seek(self.offset)
            chunk = file.read(CHUNK_BYTES)
        whole = chunk[: chunk.rfind(b"\n") + 1]
        self.offset += len(whole)
        return [found for line in whole.splitlines() if isinstance(found := _parsed(line), dict)], is_anew


@dataclass
class Recorder:
    """state: tells the run's state. `run` until cancelled."""

    layout: RunLayout
    state: Callable[[], RunState]
    history: History = field(default_factory=History)
    totals: Totals = field(default_factory=Totals)

    def __post_init__(self) -> None:
        """Go on with the history of a controller before this one."""
        self._events, self._steps = Tail(self.layout.events), Tail(self.layout.metrics)
        self._written_s, self._was_over = time.monotonic(), False
        try:
            self.history = History.from_json(self.layout.history.read_text(encoding="utf-8"))
        except FileNotFoundError:
            pass
        except (OSError, ValueError) as error:
            logger.warning("%s is not used: %s", self.layout.history, error)

    async def run(self) -> None:
        """Take a sample a second."""
        while True:
            self.sample(time.time())
            await asyncio.sleep(SAMPLE_S)

    def sample(self, at_s: float) -> None:
        """Note the run at ``at_s`` (Unix seconds); a run that is over is noted once more, and no longer."""
        state = self.state()
        self._read_files()
        if not self._was_over:
            self.history.add(at_s, state)
        ends = state.is_terminal and not self._was_over
        self._was_over = state.is_terminal
        if ends or time.monotonic() - self._written_s > WRITE_S:
            self.write()

    def write(self) -> None:
        """Replace the file, whole or not at all; a full disk is told in the log."""
        self._written_s = time.monotonic()
        beside = self.layout.history.with_suffix(".new")
        try:
            beside.write_text(self.history.to_json(), encoding="utf-8")
            beside.replace(self.layout.history)
        except OSError as error:
            logger.warning("%s cannot be written: %s", self.layout.history, error)

    def _read_files(self) -> None:
        events, _ = self._events.read()
        self.totals.num_events += Counter(str(event.get("kind", "")) for event in events)
        self.totals.paused_s += sum(float(event.get("pause_s") or 0) for event in events if _is_pause(event))
        steps, is_anew = self._steps.read()
        if is_anew:
            self.totals.trained_tokens, self.totals.step_s, self.totals.wait_s = 0.0, 0.0, 0.0
        for step in steps:
            self.totals.trained_tokens += float(step.get("tokens") or 0)
            self.totals.step_s += float(step.get("step_s") or 0)
            self.totals.wait_s += float(step.get("wait_s") or 0)


def _is_pause(event: dict[str, Any]) -> bool:
    return event.get("kind") == "group.formed"


def _parsed(line: bytes) -> object:
    try:
        return json.loads(line)
    except ValueError:
        return None
