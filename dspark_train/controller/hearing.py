"""Who was heard, and who has been silent for too long to count as alive. Pure: the clock is passed in.

A busy machine makes members answer late, so one missed answer says nothing; a death that the cluster reports counts at
once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Status = Mapping[str, Any]


class Hearing:
    """Remembers each member's last status, and since when it has been silent."""

    def __init__(self, silence_s: float) -> None:
        """silence_s: how long a member may be silent before it counts as dead."""
        self._silence_s = silence_s
        self._last: dict[str, Status] = {}
        self._silent_since_s: dict[str, float] = {}

    def take(self, now_s: float, answers: Mapping[str, Status | None]) -> dict[str, Status]:
        """Each member's status now: its answer, or its last one while its silence (None) is short."""
        return {name: self._one(now_s, name, answer) for name, answer in answers.items()}

    def forget(self, name: str) -> None:
        """A new member has taken the name: what the old one said does not count."""
        self._last.pop(name, None)
        self._silent_since_s.pop(name, None)

    def _one(self, now_s: float, name: str, answer: Status | None) -> Status:
        if answer is not None:
            self._silent_since_s.pop(name, None)
            self._last[name] = answer
            return answer
        silent_s = now_s - self._silent_since_s.setdefault(name, now_s)
        last = self._last.get(name, {"state": "starting"})
        if silent_s < self._silence_s:
            return last
        return {**last, "state": "dead", "error": f"it has not answered for {silent_s:.0f} s"}
