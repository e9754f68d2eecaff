"""From what members, ledger and master say to the state that `status` shows. Pure: readings in, state out.

A member's counters (tokens, busy seconds, blocked seconds) only grow; rates are differences over a sliding window.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from dspark_train.balance.signals import bottleneck
from dspark_train.plan.growth import engine_of
from dspark_train.report.state import EngineLoad, LedgerState, MemberPhase, MemberState, PoolState, StoreState
from dspark_train.schedule.messages import LedgerView

WINDOW_S = 20.0
PoolName = Literal["inference", "trainers"]
_PHASE: dict[str, MemberPhase] = {
    "starting": "starting",
    "ready": "ready",
    "training": "ready",
    "draining": "draining",
    "stopped": "stopped",
    "done": "stopped",
    "failed": "dead",
    "dead": "dead",
}


@dataclass(frozen=True, slots=True)
class Reading:
    """A member's counters at one moment."""

    at_s: float
    tokens: float
    busy_s: float
    blocked_s: float


@dataclass
class Track:
    """What is remembered of one member: recent readings, and since when it is in its state."""

    readings: deque[Reading] = field(default_factory=deque)
    phase: MemberPhase = "starting"
    since_s: float = 0.0

    def note(self, reading: Reading, phase: MemberPhase) -> None:
        if phase != self.phase or not self.readings:
            self.phase, self.since_s = phase, reading.at_s
        if self.readings and reading.tokens < self.readings[-1].tokens:
            self.readings.clear()  # a new process counts from zero
        self.readings.append(reading)
        while len(self.readings) > 2 and reading.at_s - self.readings[1].at_s > WINDOW_S:
            self.readings.popleft()

    def over(self) -> tuple[float, float, float, float]:
        """Seconds, tokens, busy and blocked seconds over the window."""
        if len(self.readings) < 2:
            return 0.0, 0.0, 0.0, 0.0
        old, new = self.readings[0], self.readings[-1]
        return new.at_s - old.at_s, new.tokens - old.tokens, new.busy_s - old.busy_s, new.blocked_s - old.blocked_s


class Observer:
    """Keeps the tracks of all members and makes the pools' states from them."""

    def __init__(self) -> None:
        self._tracks: dict[str, Track] = {}

    def pool(
        self,
        now_s: float,
        desired: int,
        seen: Mapping[str, Mapping[str, Any]],
        node_of: Mapping[str, str],
        *,
        in_step: bool = False,
    ) -> PoolState:
        """One pool's state. seen: member -> its status.

        in_step: its members wait for one another in every step, so the pool is blocked as long as the one that waits
        least: a rank with a smaller share waits for the others, and for no other pool.
        """
        members = [self._member(now_s, name, status, node_of.get(name, "")) for name, status in seen.items()]
        overs = [self._tracks[name].over() for name in seen]
        span_s, tokens, busy_s, blocked_s = [sum(part) for part in zip(*overs, strict=True)] or [0.0] * 4
        if in_step and span_s > 0:
            blocked_s = span_s * min(blocked / span for span, _, _, blocked in overs if span > 0)
        num = {phase: _num_whole(members, phase) for phase in ("ready", "draining")}
        return PoolState(
            desired=desired,
            ready=num["ready"],
            pending=max(0, desired - num["ready"]),
            draining=num["draining"],
            tokens_per_s=sum(m.tokens_per_s for m in members),
            service_tokens_per_s=tokens / busy_s * len(members) if busy_s > 0 and tokens > 0 else None,
            blocked_frac=min(1.0, blocked_s / span_s) if span_s > 0 else None,
            members=members,
        )

    def _member(self, now_s: float, name: str, status: Mapping[str, Any], node: str) -> MemberState:
        track = self._tracks.setdefault(name, Track(since_s=now_s))
        phase = _PHASE.get(str(status["state"]), "dead")
        last = track.readings[-1] if track.readings else Reading(now_s, 0, 0, 0)
        blocked_s = float(status.get("blocked_s", status.get("wait_s", last.blocked_s)))
        tokens, busy_s = float(status.get("tokens", last.tokens)), float(status.get("busy_s", last.busy_s))
        track.note(Reading(now_s, tokens, busy_s, blocked_s), phase)
        span_s, done_tokens, _, _ = track.over()
        return MemberState(
            name=name,
            node=node,
            pid=status.get("pid"),
            state=phase,
            tokens_per_s=done_tokens / span_s if span_s > 0 else 0.0,
            since_s=now_s - track.since_s,
            log=f"logs/{name}.log",
            error=str(status.get("error") or ""),
            load=_load(status) if phase in ("ready", "draining") else None,
        )


def _load(status: Mapping[str, Any]) -> EngineLoad | None:
    """An engine's load; None of a member that feeds none."""
    if "in_flight" not in status:
        return None
    told = status.get("load") or {}
    return EngineLoad(leased=int(status["in_flight"]), lost=int(status.get("num_lost", 0)), **told)


def _num_whole(members: list[MemberState], phase: MemberPhase) -> int:
    """How many are in this phase; an engine over several nodes is, once all of its processes are."""
    others = {engine_of(member.name) for member in members if member.state != phase}
    return len({engine_of(member.name) for member in members} - others)


def store_state(status: Mapping[str, Any]) -> StoreState:
    """The store as the master's own metrics tell it; zeros while they are not known."""
    return StoreState(
        used_bytes=int(status.get("used_bytes", 0)),
        capacity_bytes=int(status.get("capacity_bytes", 0)),
        num_samples=int(status.get("num_keys", 0)),
        num_evicted=int(status.get("num_evicted", 0)),
    )


def ledger_state(view: LedgerView) -> LedgerState:
    """The ledger's counts."""
    return LedgerState(
        planned=view.planned,
        leased=view.leased,
        ready=view.ready,
        taken=view.taken,
        trained=view.trained,
        failed=view.failed,
        regenerated=view.regenerated,
    )


def limiting_pool(pools: Mapping[PoolName, PoolState]) -> Literal["inference", "trainers", "link"] | None:
    """The pool that holds the other one up, from the blocked shares; None while nothing is known."""
    return bottleneck(
        engine_blocked_frac=pools["inference"].blocked_frac, rank_blocked_frac=pools["trainers"].blocked_frac
    )
