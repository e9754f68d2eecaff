"""Whether some pools should move now: the best move there is, held against every gate in turn. Pure.

The gain of a move depends on the rates only by their ratio, engines to ranks, and only ever falls or only ever rises
with it; so its value at the ratio's bound is the bound of the gain.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from math import exp, hypot

from dspark_train.balance.cost import move_cost, start_s
from dspark_train.balance.decision import Course, Direction, Made, Verdict
from dspark_train.balance.model import CLOSE_FRAC, Model, distance, neighbours
from dspark_train.balance.reasons import Reason
from dspark_train.balance.rule import Rule, Settings
from dspark_train.balance.seen import POOLS, Observation, Pool, Split

ENDLESS_S = 86_400.0
"""Time over which moves are compared where nothing says when the run ends."""
CHANGE_Z = 3.0
"""Standard errors by which rates must have changed before a move is taken back: chance alone must not do it."""


@dataclass(frozen=True, slots=True)
class Known:
    """The rates as a model, and how uncertain the ratio of engines to ranks is."""

    model: Model
    log_ratio: float
    """Logarithm of the engines' mean rate over the ranks'."""
    ratio_error: float
    """Its standard error."""


@dataclass(frozen=True, slots=True)
class Move:
    """A move that could be made."""

    to: Split
    gain_frac: float
    gain_low_frac: float
    cost_tokens: float
    wins_tokens: float
    """What it wins over the remaining time, at its lower bound; its cost not taken off."""


def judge(
    settings: Settings, seen: Observation, known: Known, free: Collection[Pool], course: Course, made: Made | None
) -> Verdict:
    """The verdict on moves of the ``free`` pools, and the course from here. made: the last move that was made."""
    rule = settings.rule
    moves = _moves(settings, seen, known, free)
    ended = replace(course, direction=(0, 0), num_windows=0)
    worthy = [move for move in moves if move.gain_low_frac > rule.min_gain_frac]
    paying = [move for move in worthy if move.wins_tokens > rule.cost_factor * move.cost_tokens]
    if not paying:
        reason = Reason.COST if worthy else _why_none(settings, seen, known, free, moves)
        # Where a better split is in sight, engines that wait now may be needed soon.
        found = _idle(settings, seen, known, free, ended, made) if reason in (Reason.BEST, Reason.FIXED) else None
        best = _best(worthy or moves, seen.split, is_worthy=bool(worthy))
        return found or _verdict(best, reason, replace(ended, num_idle=0))
    best = _best(paying, seen.split, is_worthy=True)
    assert best is not None
    direction = direction_of(seen.split, best.to)
    if made is not None and _takes_back(direction, made) and not _has_changed(rule, known, made):
        return _verdict(best, Reason.UNCHANGED, replace(ended, num_idle=0))
    num_windows = course.num_windows + 1 if direction == course.direction else 1
    going = replace(course, direction=direction, num_windows=num_windows, num_idle=0)
    return _when(settings, seen, going, best, Reason.GAIN, rule.num_windows - num_windows)


def _when(
    settings: Settings, seen: Observation, course: Course, move: Move, reason: Reason, num_lacking: int
) -> Verdict:
    """A move that is worth it, once it was found often enough and the last one has settled."""
    not_before_s = max(course.rest_until_s, seen.at_s + max(0, num_lacking) * settings.rule.window_s)
    if num_lacking > 0:
        reason = Reason.FEW_WINDOWS
    elif seen.at_s < course.rest_until_s:
        reason = Reason.COOLING_DOWN
    return _verdict(move, reason, course, not_before_s)


def _verdict(move: Move | None, reason: Reason, course: Course, not_before_s: float | None = None) -> Verdict:
    if move is None:
        return Verdict(reason, not_before_s=not_before_s, course=course)
    return Verdict(reason, move.to, move.gain_frac, move.gain_low_frac, move.cost_tokens, not_before_s, course)


def _why_none(
    settings: Settings, seen: Observation, known: Known, free: Collection[Pool], moves: Collection[Move]
) -> Reason:
    """Why no move is worth it."""
    min_gain, now = settings.rule.min_gain_frac, seen.split
    if any(move.gain_frac > min_gain for move in moves):
        return Reason.UNCERTAIN
    if seen.refused:
        refused = set(seen.refused).intersection(_splits(settings, now, known.model, free, 1.0))
        if any(known.model.gain(now, split) > min_gain for split in refused):
            return Reason.ILLEGAL
    if moves:
        return Reason.BEST
    others = [split for split in neighbours(now) if settings.layout.is_legal(split)]
    has_other = any(all(split.of(pool) == now.of(pool) for pool in POOLS if pool not in free) for split in others)
    return Reason.BEST if has_other else Reason.FIXED


def _moves(settings: Settings, seen: Observation, known: Known, free: Collection[Pool]) -> list[Move]:
    """Every move worth a look, but for those that were refused before.

    Candidates are the best splits at the rates as they are, and at both bounds of their ratio: one that is a little
    worse by the rates as they are may be the better one by its lower bound. Where the rates as they are promise too
    little, no lower bound can do better, and the best of them alone is looked at.
    """
    spread = exp(settings.rule.confidence_z * known.ratio_error)
    found = _allowed(settings, seen, known.model, free, (1.0,))
    if not found:
        return []
    gains = {split: known.model.gain(seen.split, split) for split in found}
    best = max(found, key=lambda split: (float(f"{gains[split]:.6g}"), -distance(split, seen.split)))
    if gains[best] <= settings.rule.min_gain_frac:
        found = {best}
    elif spread > 1 + CLOSE_FRAC:
        found |= _allowed(settings, seen, known.model, free, (spread, 1 / spread))
    remaining_s = ENDLESS_S if seen.remaining_s is None else seen.remaining_s
    return [_move(settings, seen, known.model, split, spread, remaining_s) for split in found]


def _allowed(
    settings: Settings, seen: Observation, model: Model, free: Collection[Pool], ratios: Iterable[float]
) -> set[Split]:
    found = {split for ratio in ratios for split in _splits(settings, seen.split, model, free, ratio)}
    return found.difference((seen.split, *seen.refused))


def _splits(settings: Settings, now: Split, model: Model, free: Collection[Pool], ratio: float) -> list[Split]:
    layout = settings.layout
    if "trainers" in free:
        found = model.candidates(layout, now, ratio)
        if "inference" in free:
            return list(found)
        ranks = (Split(now.num_engines, split.num_ranks) for split in found)
        return [split for split in ranks if layout.is_legal(split)]
    most = layout.most_beside(now.num_ranks)
    needed = model.engines_needed(min(model.trainers(now.num_ranks) * ratio, model.rates.link))
    split = Split(max(min(needed, most), layout.min_engines, min(now.num_engines, most)), now.num_ranks)
    return [split] if layout.is_legal(split) else []


def _move(settings: Settings, seen: Observation, model: Model, to: Split, spread: float, remaining_s: float) -> Move:
    now = seen.split
    gain = model.gain(now, to)
    low = min(gain, model.gain(now, to, spread), model.gain(now, to, 1 / spread))
    cost = move_cost(model, settings.layout, settings.rule, seen.costs, now, to)
    wins = low * model.throughput(now) * max(0.0, remaining_s - cost.takes_s)
    return Move(to, gain, low, cost.tokens, wins)


def _best(moves: Collection[Move], now: Split, *, is_worthy: bool) -> Move | None:
    """The move that wins most in the end; where none is worth it, that of the highest gain. The nearest of equals."""

    def merit(move: Move) -> tuple[float, int]:
        value = move.wins_tokens - move.cost_tokens if is_worthy else move.gain_frac
        return float(f"{value:.6g}"), -distance(move.to, now)

    return max(moves, key=merit, default=None)


def _takes_back(direction: Direction, made: Made) -> bool:
    return any(sign * last < 0 for sign, last in zip(direction, made.direction, strict=True))


def _has_changed(rule: Rule, known: Known, made: Made) -> bool:
    """Whether the ratio of the rates is another than at the last move, by more than both errors explain."""
    z = max(rule.confidence_z, CHANGE_Z)
    return abs(known.log_ratio - made.log_ratio) > z * hypot(known.ratio_error, made.error)


def direction_of(now: Split, to: Split) -> Direction:
    engines, ranks = to.num_engines - now.num_engines, to.num_ranks - now.num_ranks
    return (engines > 0) - (engines < 0), (ranks > 0) - (ranks < 0)


def _idle(
    settings: Settings, seen: Observation, known: Known, free: Collection[Pool], course: Course, made: Made | None
) -> Verdict | None:
    """The release of engines that no rank waits for; None where there are none.

    It stops no training, so it needs no gain; it keeps a reserve, and takes its time. Its cost is what is not trained
    during an engine's start, should all of them be needed again.
    """
    rule, layout, model, now = settings.rule, settings.layout, known.model, seen.split
    if rule.release_frac is None or "inference" not in free:
        return None
    spread = exp(rule.confidence_z * known.ratio_error)
    limit = min(model.trainers(now.num_ranks), model.rates.link)
    needed = model.engines_needed(limit * spread * (1 + rule.release_frac))
    to = Split(max(needed, layout.min_engines), now.num_ranks)
    if to.num_engines >= now.num_engines or not layout.is_legal(to) or to in seen.refused:
        return None
    num_idle = course.num_idle + 1
    lost = 1 - model.engines(to.num_engines) / model.engines(now.num_engines)
    cost = start_s(seen.costs, rule) * model.throughput(now) * lost
    move = Move(to, model.gain(now, to), 0.0, cost, 0.0)
    return _when(
        settings, seen, replace(course, num_idle=num_idle), move, Reason.RELEASE, rule.release_windows - num_idle
    )
