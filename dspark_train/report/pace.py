"""How long a run still takes, as a range that one can trust.

Two paces are measured on the clock, with all that happened meanwhile: of the last minutes, and of the last quarter of
an hour. Where they differ, both are told: the end is somewhere between.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from dspark_train.report.history import History

SPANS_S = (120.0, 900.0)
"""How far back the paces look."""
RECENT_STEPS = 32
LINE_BYTES = 4096
"""More than a line of metrics.jsonl takes, so that the last ones are read without the others."""


@dataclass(frozen=True, slots=True)
class Left:
    """Seconds to the last step: at the better and at the worse of the two paces."""

    low_s: float
    high_s: float


def left(num_steps: int, paces_s: list[float]) -> Left | None:
    """num_steps: still to do. paces_s: seconds a step, as measured in different ways; None where there is none."""
    known = [pace_s for pace_s in paces_s if pace_s > 0]
    if not known or num_steps <= 0:
        return None
    return Left(min(known) * num_steps, max(known) * num_steps)


def paces_s(history: History | None, metrics: Path) -> list[float]:
    """Seconds a step, from the run's history; where that is too short, from the last lines of metrics.jsonl."""
    spans = [history.pace(span_s) for span_s in SPANS_S] if history is not None else []
    found = [took_s / num_steps for num_steps, took_s in filter(None, spans) if num_steps > 0]
    recent_s = None if found else recent_pace_s(metrics)
    return found if recent_s is None else [recent_s]


def paces_on_disk_s(history: Path, metrics: Path) -> list[float]:
    """The same from the run's files alone."""
    try:
        return paces_s(History.from_json(history.read_text(encoding="utf-8")), metrics)
    except (OSError, ValueError):
        return paces_s(None, metrics)


def recent_pace_s(metrics: Path, num_steps: int = RECENT_STEPS) -> float | None:
    """Seconds a step over the last lines of metrics.jsonl, waiting for samples included; None where there are none."""
    try:
        with metrics.open("rb") as file:
            size_bytes = file.seek(0, 2)
            file.seek(max(0, size_bytes - num_steps * LINE_BYTES))
            lines = file.read().splitlines()[-num_steps:]
    except FileNotFoundError:
        return None
    spans_s = [span_s for line in lines if (span_s := _step_s(line)) is not None]
    return sum(spans_s) / len(spans_s) if spans_s else None


def _step_s(line: bytes) -> float | None:
    try:
        return float(json.loads(line)["step_s"])
    except (ValueError, KeyError, TypeError):
        return None  # the first one read may be cut
