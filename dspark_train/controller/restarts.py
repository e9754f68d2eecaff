"""When a member that died may be started again, and when it is given up. Pure: the clock is passed in."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RestartRule:
    """first_pause_s doubles with each death within window_s, up to max_pause_s; max_deaths of them are too many."""

    first_pause_s: float = 1.0
    max_pause_s: float = 60.0
    max_deaths: int = 5
    window_s: float = 600.0


class Restarts:
    """The deaths of each member, by name: a start that failed is one."""

    def __init__(self, rule: RestartRule) -> None:
        self._rule = rule
        self._deaths: dict[str, list[tuple[float, str]]] = {}
        self._given_up: dict[str, str] = {}

    def died(self, name: str, now_s: float, cause: str) -> None:
        """Note a death."""
        recent = [death for death in self._deaths.get(name, []) if now_s - death[0] <= self._rule.window_s]
        self._deaths[name] = deaths = [*recent, (now_s, cause)]
        if len(deaths) >= self._rule.max_deaths:
            span_s = now_s - deaths[0][0]
            self._given_up[name] = f"{name} died {len(deaths)} times in {span_s:.0f} s and is given up; last: {cause}"

    def next_at_s(self, name: str) -> float:
        """The earliest time of the next start: minus infinity where it never died, infinity where it is given up."""
        deaths = self._deaths.get(name)
        if not deaths:
            return float("-inf")
        if name in self._given_up:
            return float("inf")
        return deaths[-1][0] + min(self._rule.first_pause_s * 2.0 ** (len(deaths) - 1), self._rule.max_pause_s)

    def given_up(self) -> dict[str, str]:
        """Those given up, each with its reason."""
        return dict(self._given_up)

    def forgive(self, name: str) -> None:
        """Forget what befell it: somebody asked for it anew."""
        self._deaths.pop(name, None)
        self._given_up.pop(name, None)
