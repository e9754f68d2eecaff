"""From the counters of engines and ranks to service rates: work over time not blocked. Pure.

A slice ends when a member has worked MIN_SLICE_S since the last one, so a member that only waits says nothing: its
rate keeps its value, and its error grows. Slices into which an evaluation, a checkpoint, a resize or a warm-up fell
are dropped.
"""

from __future__ import annotations

from typing import NamedTuple

from dspark_train.balance.estimate import Estimate, learnt
from dspark_train.balance.rule import Rule
from dspark_train.balance.seen import EngineSeen, Observation, RankSeen
from dspark_train.schedule.unit import rank_packs

MIN_SLICE_S = 2.0
"""Less work than that is mostly the beginning and end of it."""


class EngineTrack(NamedTuple):
    """What is remembered of an engine: its counters at the last slice's end, and its rate."""

    tokens: float
    busy_s: float
    since_s: float
    """When this process was first seen."""
    rate: Estimate | None = None


class RankTrack(NamedTuple):
    """A rank's counters at the last slice's end."""

    tokens: float
    busy_s: float
    wait_s: float
    fetch_s: float


class Estimator(NamedTuple):
    """All that is known of the rates. Renewed by :func:`observed`; plain data."""

    engines: dict[str, EngineTrack]
    ranks: dict[str, RankTrack]
    rank: Estimate | None = None
    """Tokens a second of a rank that has packs to train, be they many or few."""
    link: Estimate | None = None
    """Tokens a second that the link carries; None while it was not seen to hold anyone up."""


NOTHING = Estimator({}, {})


def observed(known: Estimator, seen: Observation, rule: Rule, step_packs: int) -> Estimator:
    """What is known after one more look."""
    engines = {one.name: _engine(known.engines.get(one.name), one, seen.at_s, rule) for one in seen.engines}
    return _ranks(known._replace(engines=engines), seen, rule, step_packs)


def _engine(track: EngineTrack | None, seen: EngineSeen, at_s: float, rule: Rule) -> EngineTrack:
    if track is None:
        return EngineTrack(seen.tokens, seen.busy_s, at_s)
    tokens, busy_s = seen.tokens - track.tokens, seen.busy_s - track.busy_s
    if tokens < 0 or busy_s < 0:
        return EngineTrack(seen.tokens, seen.busy_s, at_s, track.rate)
    if seen.is_excluded or at_s - track.since_s <= rule.warm_up_s:
        return EngineTrack(seen.tokens, seen.busy_s, track.since_s, track.rate)
    if busy_s < MIN_SLICE_S:
        return track
    rate = learnt(track.rate, tokens, busy_s, at_s, rule.memory_s)
    return EngineTrack(seen.tokens, seen.busy_s, track.since_s, rate)


def _ranks(known: Estimator, seen: Observation, rule: Rule, step_packs: int) -> Estimator:
    """The group has one rate, as its ranks wait for one another in every step.

    It is that of a rank with a largest share, whose passes end last: others wait for it before gradients are exchanged,
    and that is no work of theirs. What ranks wait within an exchange counts as work: the best pace has least of it.
    """
    now = {rank.name: RankTrack(rank.tokens, rank.busy_s, rank.wait_s, rank.fetch_s) for rank in seen.ranks}
    olds = [known.ranks.get(rank.name) for rank in seen.ranks]
    grown = [_growth(old, rank) for old, rank in zip(olds, seen.ranks, strict=True) if old is not None]
    is_same = len(grown) == len(known.ranks) == len(now)
    if not is_same or seen.is_excluded or any(one.tokens < 0 or one.busy_s < 0 for one in grown):
        return known._replace(ranks=now)
    share_packs = [len(rank_packs(step_packs, len(grown), place)) for place in range(len(grown))]
    share = max(share_packs, default=0)
    largest = [one for one, packs in zip(grown, share_packs, strict=True) if packs == share]
    busy_s = sum(one.busy_s for one in largest) / max(1, len(largest))
    if busy_s < MIN_SLICE_S or any(one.busy_s <= 0 for one in grown):
        return known
    pace = max(one.tokens / one.busy_s / share for one in largest)
    rank = learnt(known.rank, pace * share * busy_s, busy_s, seen.at_s, rule.memory_s)
    return known._replace(ranks=now, rank=rank, link=_link(known.link, grown, seen.at_s, rule))


def _growth(old: RankTrack, new: RankSeen) -> RankTrack:
    return RankTrack(
        new.tokens - old.tokens, new.busy_s - old.busy_s, new.wait_s - old.wait_s, new.fetch_s - old.fetch_s
    )


def _link(known: Estimate | None, grown: list[RankTrack], at_s: float, rule: Rule) -> Estimate | None:
    """What the link carries, from the time in which ranks trained or waited for what was in the store already.

    Waiting for samples that no engine had made is not the link's fault and is left out. A throughput above what the
    link was thought to carry says that it carries more. The rank that waits most for its samples is looked at: others
    wait for it, whatever of theirs is here.
    """
    tokens = sum(one.tokens for one in grown)
    most_s = max(one.busy_s + one.wait_s for one in grown)
    slowest = max(grown, key=lambda one: one.fetch_s)
    fetch_s, empty_s = slowest.fetch_s, slowest.wait_s - slowest.fetch_s
    if fetch_s >= rule.waiting_frac * most_s:
        return learnt(known, tokens, max(most_s - empty_s, fetch_s), at_s, rule.memory_s)
    return None if known is not None and tokens > known.value * most_s else known
