"""What every committed unit leaves behind: a line in metrics.jsonl or validation.jsonl, TensorBoard scalars, trackers.

The JSON lines are the record: each step once, in order. TensorBoard is for looking; a fault there is logged and ends
only it. Imports neither torch nor tensorflow (tensorboard's writer takes 0.3 s to import).
"""

from __future__ import annotations

import json
import logging
import math
import os
import time
from collections.abc import Sequence
from numbers import Integral, Real
from pathlib import Path
from typing import TextIO

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from dspark_train.controller.figures import Line, Metrics, figures, parse_line, step_of
from dspark_train.controller.trackers import Tracking
from dspark_train.plan.run_layout import RunLayout

FLUSH_S = 10
"""How long TensorBoard may lag behind."""
logger = logging.getLogger(__name__)


class StepLines:
    """A file of JSON lines, one a step, appended to and flushed line by line. Close it."""

    def __init__(self, path: Path, last_step: int) -> None:
        """Drop the lines after ``last_step``, and a last line that was torn by a crash, then append."""
        lines = path.read_bytes().splitlines() if path.exists() else []
        kept = [line for line in map(parse_line, lines) if line is not None and step_of(line) <= last_step]
        self.num_dropped = len(lines) - len(kept)
        """Lines that were there and are not kept."""
        self.steps = [step_of(line) for line in kept]
        """The steps of the lines kept."""
        self.last: Line = kept[-1] if kept else {}
        """The newest line."""
        if self.num_dropped or (lines and not path.read_bytes().endswith(b"\n")):
            _replace(path, kept)
        self._file: TextIO = path.open("a", encoding="utf-8")

    def append(self, step: int, metrics: Metrics) -> None:
        """Write one line; it is in the hands of the operating system when this returns. Raises OSError."""
        line = {"step": step} | {key: _plain(value) for key, value in metrics.items() if key != "step"}
        self._file.write(json.dumps(line, allow_nan=False) + "\n")
        self._file.flush()
        self.last = line

    def close(self) -> None:
        """Twice is fine."""
        self._file.close()


class Scalars:
    """TensorBoard event files of a run. Close it."""

    def __init__(self, directory: Path, last_step: int) -> None:
        """What an earlier life wrote after ``last_step`` is told to be out of date."""
        self._writer: EventFileWriter | None = EventFileWriter(str(directory), flush_secs=FLUSH_S)
        self._add(Event(step=last_step + 1, session_log=SessionLog(status=SessionLog.START)))

    def append(self, kind: str, step: int, metrics: Metrics) -> None:
        """The numbers of one line. kind: "train" or "validate"."""
        values = [Summary.Value(tag=tag, simple_value=value) for tag, value in figures(kind, metrics).items()]
        self._add(Event(step=step, summary=Summary(value=values)))

    def _add(self, event: Event) -> None:
        if self._writer is None:
            return
        event.wall_time = time.time()
        try:
            self._writer.add_event(event)
        except OSError as error:
            logger.warning("TensorBoard files cannot be written any more: %s; metrics.jsonl has everything", error)
            self._writer = None

    def close(self) -> None:
        """Write what is buffered; twice is fine."""
        if self._writer is not None:
            writer, self._writer = self._writer, None
            writer.close()


class StepLog:
    """All records of a run's units, continued after ``last_step``. Close it."""

    def __init__(self, layout: RunLayout, last_step: int, trackers: Sequence[Tracking] = ()) -> None:
        """trackers: get the same figures as TensorBoard; closed with it."""
        layout.root.mkdir(parents=True, exist_ok=True)
        self.train = StepLines(layout.metrics, last_step)
        self.validation = StepLines(layout.validation, last_step)
        self._scalars = Scalars(layout.tensorboard, last_step)
        self._trackers = tuple(trackers)
        for lines, path in ((self.train, layout.metrics), (self.validation, layout.validation)):
            if lines.num_dropped:
                logger.info("%s: %d lines after step %d dropped", path, lines.num_dropped, last_step)
        if self.train.steps != list(range(1, last_step + 1)):
            logger.warning("%s does not hold each of the steps 1 .. %d once", layout.metrics, last_step)

    def append(self, kind: str, step: int, metrics: Metrics) -> None:
        """Record a trained step, or (kind "validate") the round after it. Raises OSError."""
        (self.validation if kind == "validate" else self.train).append(step, metrics)
        self._scalars.append(kind, step, metrics)
        for tracker in self._trackers:
            tracker.append(kind, step, figures(kind, metrics))

    def close(self) -> None:
        """Twice is fine."""
        self.train.close()
        self.validation.close()
        self._scalars.close()
        for tracker in self._trackers:
            tracker.close()


def last_step(path: Path) -> int:
    """The step of the last whole line, 0 where there is none."""
    lines = path.read_bytes().splitlines() if path.exists() else []
    return next((step_of(line) for line in map(parse_line, reversed(lines)) if line is not None), 0)


def _plain(value: object) -> float | int | str | None:
    """A number as JSON knows it: numpy's too; what is not finite becomes null."""
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value) if math.isfinite(value) else None
    return str(value)


def _replace(path: Path, lines: list[Line]) -> None:
    """Put these lines in the file's place, whole or not at all."""
    beside = path.with_name(path.name + ".new")
    with beside.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
