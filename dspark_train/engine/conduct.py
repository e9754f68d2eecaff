"""Whether an engine is still of use, from what became of its requests. Pure: the clock is passed in.

An engine is given up when it hangs, when it fails again and again, when what it makes is wrong for several samples in a
row, and when it is cut off from the ledger. What one bad sample does to it, or a store that does not answer, is no
reason.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

Blame = Literal["", "timeout", "refused", "wrong", "alive"]
"""What a lost sample says of its engine. "": nothing. timeout: no answer, or no object, in time. refused: an error, or
no connection. wrong: the answer or the hidden states were wrong. alive: it works; what failed was something else."""


@dataclass(frozen=True, slots=True)
class Rule:
    """When an engine is given up."""

    request_timeout_s: float
    """Of one extraction; errors that go on for longer are no passing ones."""
    silence_s: float
    """How long the ledger may be out of reach."""
    num_timeouts: int = 2
    """In a row. One may be the fault of its sample."""
    num_wrong: int = 3
    """Different samples in a row."""


@dataclass(frozen=True, slots=True)
class Conduct:
    """What an engine has done since its last success. Times are those of the one clock."""

    success_s: float
    """When the last sample arrived; the start, before the first."""
    heard_s: float
    """When the ledger last answered; the start, before the first time."""
    num_lost: int = 0
    num_timeouts: int = 0
    timeouts_since_s: float = 0.0
    """Since when nothing came: since the first request that timed out began, or a later success of another."""
    num_refused: int = 0
    refused_since_s: float = 0.0
    wrong: frozenset[int] = frozenset()
    """Samples that came out wrong since one came out right."""
    last: str = ""
    """Why the last sample was lost."""

    def succeeded(self, now_s: float) -> Conduct:
        """A sample has arrived."""
        return Conduct(success_s=now_s, heard_s=self.heard_s, num_lost=self.num_lost)

    def answered(self) -> Conduct:
        """A request was answered well; the sample is not there yet."""
        return replace(self, num_refused=0)

    def heard(self, now_s: float) -> Conduct:
        """The ledger has answered."""
        return replace(self, heard_s=now_s)

    def lost(self, sample: int, blame: Blame, reason: str, begun_s: float, now_s: float) -> Conduct:
        """A sample was lost, whose request began at ``begun_s``."""
        lost = replace(self, num_lost=self.num_lost + 1, last=reason)
        return lost.failed(blame, begun_s, now_s) if blame != "wrong" else replace(lost, wrong=self.wrong | {sample})

    def failed(self, blame: Blame, begun_s: float, now_s: float) -> Conduct:
        """A request failed, be it one for a sample or one that only tries the engine."""
        if blame == "timeout":
            since_s = self.timeouts_since_s if self.num_timeouts else max(begun_s, self.success_s)
            return replace(self, num_timeouts=self.num_timeouts + 1, timeouts_since_s=since_s)
        if blame == "refused":
            since_s = self.refused_since_s if self.num_refused else now_s
            return replace(self, num_refused=self.num_refused + 1, refused_since_s=since_s)
        return replace(self, num_timeouts=0, num_refused=0) if blame == "alive" else self


def verdict(rule: Rule, conduct: Conduct, now_s: float) -> str:
    """Why the engine is of no use any more, "" while it is."""
    silent_s = now_s - conduct.heard_s
    if silent_s >= rule.silence_s:
        return f"cut off from the ledger for {silent_s:.0f} s"
    hung_s = now_s - conduct.timeouts_since_s
    if conduct.num_timeouts >= rule.num_timeouts and hung_s >= rule.request_timeout_s:
        return f"hung: nothing for {hung_s:.0f} s, {conduct.num_timeouts} requests in a row timed out"
    refused_s = now_s - conduct.refused_since_s
    if conduct.num_refused >= 2 and refused_s >= rule.request_timeout_s:
        return f"fails: nothing but errors for {refused_s:.0f} s, {conduct.num_refused} in a row; last: {conduct.last}"
    if len(conduct.wrong) >= rule.num_wrong:
        return f"lies: {len(conduct.wrong)} different samples in a row were wrong; last: {conduct.last}"
    return ""
