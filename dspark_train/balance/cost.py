"""What a move costs: the tokens that are not trained while it is on its way. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from dspark_train.balance.layout import Layout
from dspark_train.balance.model import Model
from dspark_train.balance.rule import Rule
from dspark_train.balance.seen import Costs, Pool, Split


@dataclass(frozen=True, slots=True)
class MoveCost:
    """tokens: not trained; takes_s: until the new members work."""

    tokens: float
    takes_s: float


def gives_first(layout: Layout, now: Split, to: Split) -> Pool | None:
    """The pool that must give nodes up before the other can take them; None where there is room for both at once."""
    most = Split(max(now.num_engines, to.num_engines), max(now.num_ranks, to.num_ranks))
    if most in (now, to) or layout.is_legal(most):
        return None
    return "inference" if to.num_engines < now.num_engines else "trainers"


def move_cost(model: Model, layout: Layout, rule: Rule, costs: Costs, now: Split, to: Split) -> MoveCost:
    """The pause of training where ranks come or go, and what lacks while new members start on nodes that were given up.

    Members that start on free nodes cost nothing: the others go on.
    """
    engine_s, rank_s, pause_s = _known(costs, rule)
    starts_s = max(engine_s * (to.num_engines > now.num_engines), rank_s * (to.num_ranks > now.num_ranks))
    at_now = model.throughput(now)
    tokens = pause_s * at_now if to.num_ranks != now.num_ranks else 0.0
    if gives_first(layout, now, to):
        between = Split(min(now.num_engines, to.num_engines), min(now.num_ranks, to.num_ranks))
        tokens += starts_s * max(0.0, at_now - model.throughput(between))
    return MoveCost(tokens, starts_s)


def start_s(costs: Costs, rule: Rule) -> float:
    """An engine's start, measured where it was."""
    return _known(costs, rule)[0]


def _known(costs: Costs, rule: Rule) -> tuple[float, float, float]:
    """Measured where there is a measurement."""
    pairs = (
        (costs.engine_start_s, rule.engine_start_s),
        (costs.rank_start_s, rule.rank_start_s),
        (costs.pause_s, rule.pause_s),
    )
    engine_s, rank_s, pause_s = (expected if measured is None else measured for measured, expected in pairs)
    return engine_s, rank_s, pause_s
