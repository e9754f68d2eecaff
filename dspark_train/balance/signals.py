"""What the counters of engines and ranks say: rates over a sliding window, and which pool holds the other up. Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Literal

Bottleneck = Literal["inference", "trainers", "link"]


@dataclass(frozen=True, slots=True)
class BottleneckRule:
    """From which share of its time without work on a pool counts as held up by another."""

    waiting_frac: float = 0.1
    """Below a tenth the loss is within what one step's start and end cost; no move would win it back."""


def bottleneck(
    *,
    engine_blocked_frac: float | None,
    rank_blocked_frac: float | None,
    rule: BottleneckRule = BottleneckRule(),
) -> Bottleneck | None:
    """Which part holds the run up, from the share of a window in which engines and ranks had nothing to do.

    engine_blocked_frac: engines had room, but the ledger gave no lease; rank_blocked_frac: ranks waited for samples.
    Ranks wait, engines do not: inference. Engines wait, ranks do not: trainers. Both wait: samples are made faster than
    they arrive, so the link. None where neither waits (the pools match) or a share is not known yet.
    """
    if engine_blocked_frac is None or rank_blocked_frac is None:
        return None
    engines_wait = engine_blocked_frac >= rule.waiting_frac
    ranks_wait = rank_blocked_frac >= rule.waiting_frac
    if engines_wait and ranks_wait:
        return "link"
    if engines_wait:
        return "trainers"
    return "inference" if ranks_wait else None


class Rate:
    """How fast a counter that only grows has grown over the last ``window_s`` seconds.

    Of tokens it is a throughput; of seconds waited, the share of time spent waiting.
    """

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._seen: deque[tuple[float, float]] = deque()

    def observe(self, at_s: float, total: float) -> None:
        """The counter stands at ``total``. A smaller one than before is a new process: what was seen is forgotten."""
        if self._seen and total < self._seen[-1][1]:
            self._seen.clear()
        self._seen.append((at_s, total))
        self._trim(at_s)

    def per_s(self, at_s: float) -> float | None:
        """Growth a second up to ``at_s``; None while fewer than two moments of the window are known."""
        self._trim(at_s)
        if len(self._seen) < 2 or at_s <= self._seen[0][0]:
            return None
        return (self._seen[-1][1] - self._seen[0][1]) / (at_s - self._seen[0][0])

    def _trim(self, at_s: float) -> None:
        """Keep one moment at or before the window's start, so that the window is covered in full."""
        while len(self._seen) > 1 and self._seen[1][0] <= at_s - self._window_s:
            self._seen.popleft()
