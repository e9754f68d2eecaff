"""Whether training stands still though nothing is missing: a rank answers, and its training thread hangs. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from statistics import median
from typing import Any

from dspark_train.schedule.messages import LedgerView
from dspark_train.topology.schema import Topology

NUM_REMEMBERED = 20
TIMES_MEDIAN = 20.0
"""So many times as long as a unit usually takes is a stall."""


def least_s(topology: Topology) -> float:
    """No shorter stand-still is a stall: a collective may take its time, and a step may be held up on purpose."""
    return max(topology.supervision.silence_s, topology.trainers.group_timeout_s) + topology.trainers.min_step_s


class StallWatch:
    """Remembers how long units took from being handed out completely to their commit."""

    def __init__(self, least_s: float) -> None:
        """least_s: no shorter stand-still is a stall."""
        self._least_s = least_s
        self._took_s: deque[float] = deque(maxlen=NUM_REMEMBERED)
        self._unit = -1
        self._whole_since_s: float | None = None

    def reset(self) -> None:
        """The group is a new one: what was seen of the unit in hand does not count."""
        self._whole_since_s = None

    def look(self, now_s: float, view: LedgerView, ranks: Mapping[str, Mapping[str, Any]]) -> str:
        """Why the group must be formed anew, "" while there is progress or something is waited for."""
        if view.unit != self._unit:
            if self._whole_since_s is not None:
                self._took_s.append(now_s - self._whole_since_s)
            self._unit, self._whole_since_s = view.unit, None
        waits = any(status.get("fault") for status in ranks.values())
        if not view.is_handed_out or view.state != "running" or waits:
            self._whole_since_s = None
            return ""
        if self._whole_since_s is None:
            self._whole_since_s = now_s
            return ""
        limit_s = max(self._least_s, TIMES_MEDIAN * median(self._took_s) if self._took_s else 0.0)
        stood_s = now_s - self._whole_since_s
        if stood_s <= limit_s:
            return ""
        return f"unit {view.unit} has not ended {stood_s:.0f} s after its samples were all handed out"
