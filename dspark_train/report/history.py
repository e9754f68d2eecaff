"""A run over time in a bounded number of points: sizes of the pools, pace, losses, store. Pure: the clock is passed in.

A point covers ``width_s`` seconds. When there are too many, neighbours become one and points cover twice as much from
then on: days take as much room as minutes, and the whole run stays in view.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, Literal

from dspark_train.report.state import RunState

Merge = Literal["last", "mean", "low", "high"]
MAX_POINTS = 600
FIRST_WIDTH_S = 1.0
DIGITS = 6
"""Significant digits of a value when it is told: a screen shows fewer."""


@dataclass(frozen=True, slots=True)
class Column:
    """One value of a point. merge: what becomes of several: a dip of a pool's size must stay visible, so "low"."""

    read: Callable[[RunState], float | None]
    merge: Merge


COLUMNS: dict[str, Column] = {
    "step": Column(lambda state: state.step, "last"),
    "loss": Column(lambda state: state.loss, "mean"),
    "accept_len": Column(lambda state: state.accept_len, "mean"),
    "validation_loss": Column(lambda state: state.validation_loss, "last"),
    "validation_accept_len": Column(lambda state: state.validation_accept_len, "last"),
    "engines_ready": Column(lambda state: state.pools["inference"].ready, "low"),
    "engines_desired": Column(lambda state: state.pools["inference"].desired, "high"),
    "ranks_ready": Column(lambda state: state.pools["trainers"].ready, "low"),
    "ranks_desired": Column(lambda state: state.pools["trainers"].desired, "high"),
    "engine_tokens_per_s": Column(lambda state: state.pools["inference"].tokens_per_s, "mean"),
    "trained_tokens_per_s": Column(lambda state: state.tokens_per_s, "mean"),
    "engine_service_tokens_per_s": Column(lambda state: state.pools["inference"].service_tokens_per_s, "mean"),
    "trainer_service_tokens_per_s": Column(lambda state: state.pools["trainers"].service_tokens_per_s, "mean"),
    "engine_blocked_frac": Column(lambda state: state.pools["inference"].blocked_frac, "mean"),
    "trainer_blocked_frac": Column(lambda state: state.pools["trainers"].blocked_frac, "mean"),
    "store_used_bytes": Column(lambda state: state.store.used_bytes, "high"),
    "store_capacity_bytes": Column(lambda state: state.store.capacity_bytes, "last"),
    "num_faults": Column(lambda state: len(state.faults), "high"),
}
"""What is kept of a state, by name."""


@dataclass(slots=True)
class Point:
    """at_s: where its time begins, Unix seconds. num: states that went into it."""

    at_s: float
    num: int
    values: dict[str, float | None]

    def take_in(self, later: Point) -> None:
        """Make one point of this and the next one."""
        for name, column in COLUMNS.items():
            self.values[name] = _merged(column.merge, self.values[name], later.values[name], self.num, later.num)
        self.num += later.num


class History:
    """See the module. Not thread-safe: one thread adds and asks."""

    def __init__(self, max_points: int = MAX_POINTS, width_s: float = FIRST_WIDTH_S) -> None:
        self._max_points = max_points
        self.width_s = width_s
        self._points: list[Point] = []

    def __len__(self) -> int:
        return len(self._points)

    def add(self, at_s: float, state: RunState) -> None:
        """Note what the run looks like at ``at_s`` (Unix seconds). A clock that was set back adds to the last point."""
        self._append(Point(self._begin(at_s), 1, {name: column.read(state) for name, column in COLUMNS.items()}))
        while len(self._points) > self._max_points:
            self.width_s *= 2
            points, self._points = self._points, []
            for point in points:
                point.at_s = self._begin(point.at_s)
                self._append(point)

    def _append(self, point: Point) -> None:
        if self._points and point.at_s <= self._points[-1].at_s:
            self._points[-1].take_in(point)
        else:
            self._points.append(point)

    def _begin(self, at_s: float) -> float:
        return math.floor(at_s / self.width_s) * self.width_s

    def since(self, after_s: float, width_s: float) -> dict[str, Any]:
        """The points from ``after_s`` on, for one who has the others at this width; else, ``is_whole``, all of them."""
        is_whole = width_s != self.width_s
        points = self._points if is_whole else [point for point in self._points if point.at_s >= after_s]
        return {"width_s": self.width_s, "is_whole": is_whole, "columns": _columns(points)}

    def pace(self, over_s: float) -> tuple[float, float] | None:
        """Steps done in the last ``over_s`` seconds of the record, and the seconds that they took.

        What went before the first of them, the start of everything, tells nothing of the steps and is left out.
        """
        steps = [(point.at_s, point.values["step"] or 0.0) for point in self._points]
        num_before = sum(1 for _ in takewhile(lambda one: one[1] == steps[0][1], steps))
        steps = steps[max(0, num_before - 1) :]
        recent = [(at_s, step) for at_s, step in steps if at_s >= steps[-1][0] - over_s]
        if len(recent) < 2:
            return None
        return recent[-1][1] - recent[0][1], recent[-1][0] - recent[0][0]

    def to_json(self) -> str:
        """All of it as text, for `from_json`."""
        return json.dumps(
            {"width_s": self.width_s, "num": [point.num for point in self._points], "columns": _columns(self._points)}
        )

    @classmethod
    def from_json(cls, text: str) -> History:
        """What `to_json` gave. Raises ValueError on anything else."""
        made = cls()
        try:
            found = json.loads(text)
            made.width_s, columns = float(found["width_s"]), found["columns"]
            for index, (at_s, num) in enumerate(zip(columns["at_s"], found["num"], strict=True)):
                values = {name: columns[name][index] if name in columns else None for name in COLUMNS}
                made._append(Point(float(at_s), int(num), values))
        except (KeyError, TypeError, IndexError) as error:
            raise ValueError(f"not a history: {error!r}") from error
        return made


def _columns(points: list[Point]) -> dict[str, list[float | None]]:
    told: dict[str, list[float | None]] = {"at_s": [point.at_s for point in points]}
    return told | {name: [_short(point.values[name]) for point in points] for name in COLUMNS}


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.{DIGITS}g}") if value % 1 else int(value)


def _merged(merge: Merge, old: float | None, new: float | None, num_old: int, num_new: int) -> float | None:
    if old is None or new is None:
        return new if old is None else old
    match merge:
        case "last":
            return new
        case "low":
            return min(old, new)
        case "high":
            return max(old, new)
        case "mean":
            return (old * num_old + new * num_new) / (num_old + num_new)
