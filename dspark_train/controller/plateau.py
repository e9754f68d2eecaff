"""Whether a run is to end before its last step: validation has not got better for a number of rounds. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class PlateauRule:
    """num_rounds: validation rounds without a gain after which training ends; None never ends it.

    min_gain: what the acceptance length must gain on the best before to count.
    """

    num_rounds: int | None
    min_gain: float


class Plateau:
    """Remembers the best validated acceptance length, and how many rounds it is old."""

    def __init__(self, rule: PlateauRule, before: Iterable[Mapping[str, Any]] = ()) -> None:
        """before: the rounds that an earlier life of the run has done, in order."""
        self._rule = rule
        self._best = float("-inf")
        self._best_step = self._last_step = -1
        self._num_since = 0
        for line in before:
            self.look(line)

    def look(self, line: Mapping[str, Any]) -> str:
        """Take in the newest round, which may be seen again and again. Why training is to end, "" to go on."""
        step, accept_len = line.get("step"), line.get("accept_len")
        if isinstance(step, int) and isinstance(accept_len, int | float) and step > self._last_step:
            self._last_step = step
            self._take(step, float(accept_len))
        if self._rule.num_rounds is None or self._num_since < self._rule.num_rounds:
            return ""
        return (
            f"validation has not got better by {self._rule.min_gain:g} for {self._num_since} rounds: the best "
            f"acceptance length is {self._best:.3f}, of step {self._best_step}"
        )

    def _take(self, step: int, accept_len: float) -> None:
        if accept_len >= self._best + self._rule.min_gain:
            self._best, self._best_step, self._num_since = accept_len, step, 0
        else:
            self._num_since += 1
