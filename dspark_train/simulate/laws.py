"""The laws that are compared: each looks at the world and says which split it wants. Pure.

balance    this project's own, `balance.decide`
static     never moves
occupancy  thresholds on how full the store is: below 20 % an engine more, above 80 % an engine less
ratio      Ray Serve's autoscaling policy (ray/serve/autoscaling_policy.py): desired = ceil(current x ongoing / target),
           kept up for 30 s before it grows and 600 s before it shrinks
oracle     knows every rate, present and future, and pays for its moves
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from typing import Protocol

from dspark_train.balance.cost import move_cost
from dspark_train.balance.decide import decide
from dspark_train.balance.decision import Decision, State
from dspark_train.balance.layout import Layout
from dspark_train.balance.rule import Settings
from dspark_train.balance.seen import Observation, Split
from dspark_train.simulate.world import World


class Law(Protocol):
    """Says what is wanted, tick by tick."""

    def wanted(self, world: World) -> Split:
        """The split from here on; ``world.wanted`` to change nothing."""
        ...


class Balance:
    """The one of this project. Keeps what it saw and decided if asked to, as a run's journal does."""

    def __init__(self, settings: Settings, journal: Callable[[Observation, Decision], None] | None = None) -> None:
        self._settings, self._journal = settings, journal
        self._state = State()
        self._next_s = 0.0
        self.cost_samples = 0.0
        """What its moves were expected to cost."""

    def wanted(self, world: World) -> Split:
        if world.at_s < self._next_s:
            return world.wanted
        self._next_s = world.at_s + self._settings.rule.window_s
        seen = world.observation()
        self._state, decision = decide(self._settings, self._state, seen)
        if self._journal is not None:
            self._journal(seen, decision)
        self.cost_samples += decision.cost_tokens if decision.acts else 0.0
        return decision.to if decision.acts else world.wanted


class Static:
    """Never moves."""

    def wanted(self, world: World) -> Split:
        return world.wanted


class Occupancy:
    """Holds the store between two marks; waits until a member that it asked for is there."""

    low_frac, high_frac, every_s = 0.2, 0.8, 60.0

    def __init__(self, layout: Layout) -> None:
        self._layout, self._next_s = layout, 0.0

    def wanted(self, world: World) -> Split:
        if world.at_s < self._next_s or world.num_pending:
            return world.wanted
        self._next_s = world.at_s + self.every_s
        step = (world.fill_frac < self.low_frac) - (world.fill_frac > self.high_frac)
        return beside(self._layout, world.wanted.num_engines + step, world.wanted) if step else world.wanted


class Ratio:
    """Ray Serve's. An engine that is not blocked has all the requests that it may have, a blocked one none: so the mean
    number that is ongoing is the share of its time that it works, and the target is a share as well.
    """

    target_frac, grow_after_s, shrink_after_s = 0.8, 30.0, 600.0

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._since_s, self._sign = 0.0, 0

    def wanted(self, world: World) -> Split:
        now = world.wanted.num_engines
        desired = ceil(now * world.busy_frac / self.target_frac)
        sign = (desired > now) - (desired < now)
        if sign != self._sign:
            self._sign, self._since_s = sign, world.at_s
        patience_s = self.grow_after_s if sign > 0 else self.shrink_after_s
        if not sign or world.at_s - self._since_s < patience_s:
            return world.wanted
        self._since_s = world.at_s
        return beside(self._layout, desired, world.wanted)


class Oracle:
    """Moves to the split that wins most up to the next change of the rates, if it wins more than it costs."""

    every_s = 300.0

    def __init__(self, settings: Settings, change_at_s: tuple[float, ...]) -> None:
        self._settings, self._changes = settings, change_at_s
        self._next_s = 0.0

    def wanted(self, world: World) -> Split:
        if world.at_s < self._next_s or world.num_pending:
            return world.wanted
        upcoming = [at_s for at_s in self._changes if at_s > world.at_s]
        self._next_s = min([*upcoming, world.at_s + self.every_s])
        until_s = min([*upcoming, world.at_s + world.remaining_s]) - world.at_s
        model, costs, layout, now = world.model(), world.observation().costs, self._settings.layout, world.wanted
        won = {now: 0.0}
        for to in model.candidates(layout, now):
            cost = move_cost(model, layout, self._settings.rule, costs, now, to)
            more = model.throughput(to) - model.throughput(now)
            won[to] = more * max(0.0, until_s - cost.takes_s) - cost.tokens
        return max(won, key=won.__getitem__)


def beside(layout: Layout, num_engines: int, now: Split) -> Split:
    """So many engines, kept within bounds, with the most ranks that have room beside them; ``now`` where none has."""
    num_engines = max(layout.min_engines, min(num_engines, max(layout.most_engines)))
    fitting = [ranks for ranks in layout.ranks if layout.most_beside(ranks) >= num_engines]
    return Split(num_engines, max(fitting)) if fitting else now
