"""The balance: (settings, state, observation) -> (state, decision). Pure; the clock is the observation's.

The controller calls `decide` every `window_s`, does what `Decision.acts` says, and keeps the state. Every decision has
a reason, holding included.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from math import hypot, log, sqrt

from dspark_train.balance.cost import gives_first
from dspark_train.balance.decision import Course, Decision, Made, State, Verdict
from dspark_train.balance.estimator import Estimator, observed
from dspark_train.balance.gates import Known, direction_of, judge
from dspark_train.balance.model import Model, Rates
from dspark_train.balance.reasons import Reason
from dspark_train.balance.rule import Settings
from dspark_train.balance.seen import POOLS, Observation, Pool, Split

EARLY_FRAC = 0.95
"""A call that comes a little before the window's end counts as at its end."""


def decide(settings: Settings, state: State, seen: Observation) -> tuple[State, Decision]:
    """One decision. Before the window is over nothing is learnt and nothing changes."""
    rule = settings.rule
    if state.at_s is not None and seen.at_s - state.at_s < EARLY_FRAC * rule.window_s:
        return state, _hold(seen, Reason.BETWEEN_WINDOWS, state.at_s + rule.window_s)
    known = observed(state.known, seen, rule, settings.layout.step_packs)
    state = _settled(settings, replace(state, at_s=seen.at_s, known=known), seen)
    auto = _free(seen, ("auto",))
    wide = _free(seen, ("auto", "advise"))
    reason = _obstacle(seen, wide)
    rates = None if reason else known_rates(settings, known, seen)
    if reason is None and rates is None:
        reason = Reason.RATES_UNKNOWN
    if reason is not None or rates is None:
        stopped = replace(state, acting=_stopped(state.acting), advised=_stopped(state.advised))
        return stopped, _hold(seen, reason or Reason.RATES_UNKNOWN, state.acting.rest_until_s)
    return _choose(settings, state, seen, rates, auto, wide)


def _choose(
    settings: Settings, state: State, seen: Observation, known: Known, auto: Collection[Pool], wide: Collection[Pool]
) -> tuple[State, Decision]:
    """What pools in auto do; if they hold, what those in advise would do beside them."""
    verdict = None
    if auto:
        verdict = judge(settings, seen, known, auto, state.acting, state.made)
        state = replace(state, acting=verdict.course)
        if verdict.reason.is_move and verdict.to is not None:
            state = replace(
                state, is_settling=True, acting=Course(), made=_made(seen, known, verdict.to, verdict.reason)
            )
            return state, _decision(settings, seen, verdict, acts=True)
    if len(wide) > len(auto):
        advice = judge(settings, seen, known, wide, state.advised, state.made)
        course = advice.course
        if advice.reason.is_move:
            course = Course(rest_until_s=seen.at_s + settings.rule.cooldown_s)
        state = replace(state, advised=course)
        if advice.reason.is_move or verdict is None:
            verdict = advice
    assert verdict is not None
    return state, _decision(settings, seen, verdict, acts=False)


def known_rates(settings: Settings, known: Estimator, seen: Observation) -> Known | None:
    """The model of what is known now; None while the rate of the ranks, or of every engine, is unknown.

    An engine without a rate of its own is taken to be as the mean of the others, and as uncertain.
    """
    tracks = (known.engines.get(engine.name) for engine in seen.engines)
    rates = [track.rate if track is not None else None for track in tracks]
    values = [rate.value for rate in rates if rate is not None]
    rank = known.rank
    if rank is None or rank.value <= 0 or not values or sum(values) <= 0:
        return None
    mean = sum(values) / len(values)
    variance = sum(rate.variance(seen.at_s) for rate in rates if rate is not None) / len(values) ** 2
    engine_error = sqrt(variance) / mean
    rank_error = rank.error(seen.at_s) / rank.value
    link = {} if known.link is None else {"link": known.link.value}
    engines = tuple(mean if rate is None else rate.value for rate in rates)
    made = Rates(engines, rank.value, settings.layout.step_packs, **link)
    return Known(Model(made), log(mean / rank.value), hypot(engine_error, rank_error))


def _made(seen: Observation, known: Known, to: Split, reason: Reason) -> Made | None:
    """What is remembered of a move; of a release nothing, so that engines come back as soon as they are needed."""
    if reason is Reason.RELEASE:
        return None
    return Made(direction_of(seen.split, to), known.log_ratio, known.ratio_error)


def _obstacle(seen: Observation, free: Collection[Pool]) -> Reason | None:
    """Why nothing can be decided now, whatever the rates."""
    if not free:
        return Reason.OFF if any(seen.mode(pool) == "off" for pool in POOLS) else Reason.PINNED
    if not seen.is_running:
        return Reason.NOT_RUNNING
    if seen.num_pending:
        return Reason.PENDING
    if seen.num_silent or len(seen.engines) != seen.split.num_engines or len(seen.ranks) != seen.split.num_ranks:
        return Reason.SILENT
    return None


def _free(seen: Observation, modes: Collection[str]) -> tuple[Pool, ...]:
    """The pools in one of these modes that nobody has pinned."""
    return tuple(pool for pool in POOLS if seen.mode(pool) in modes and pool not in seen.pinned)


def _settled(settings: Settings, state: State, seen: Observation) -> State:
    """Note a change of the sizes, by whomever; the cooldown begins when its members have settled."""
    changed = state.split is not None and seen.split != state.split
    state = replace(state, split=seen.split, is_settling=state.is_settling or changed)
    if state.is_settling and seen.is_running and not seen.num_pending:
        course = Course(rest_until_s=seen.at_s + settings.rule.cooldown_s)
        state = replace(state, is_settling=False, acting=course, advised=course)
    return state


def _stopped(course: Course) -> Course:
    return Course(rest_until_s=course.rest_until_s)


def _hold(seen: Observation, reason: Reason, not_before_s: float) -> Decision:
    return Decision(seen.at_s, seen.split, seen.split, reason, not_before_s=max(not_before_s, seen.at_s))


def _decision(settings: Settings, seen: Observation, verdict: Verdict, *, acts: bool) -> Decision:
    is_move = verdict.reason.is_move
    return Decision(
        at_s=seen.at_s,
        now=seen.split,
        to=verdict.to if is_move and verdict.to is not None else seen.split,
        reason=verdict.reason,
        acts=acts and is_move,
        gain_frac=verdict.gain_frac,
        gain_low_frac=verdict.gain_low_frac,
        cost_tokens=verdict.cost_tokens,
        candidate=verdict.to,
        gives_first=gives_first(settings.layout, seen.split, verdict.to) if is_move and verdict.to else None,
        not_before_s=verdict.not_before_s,
    )
