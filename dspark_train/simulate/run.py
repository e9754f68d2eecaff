"""All laws through one scenario, and what each made of it. Pure."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import fmean

import numpy as np

from dspark_train.balance.layout import Layout
from dspark_train.balance.rule import Settings
from dspark_train.balance.seen import Split
from dspark_train.errors import UsageError
from dspark_train.simulate.flow import Flow, Fluid
from dspark_train.simulate.laws import Balance, Law, Occupancy, Oracle, Ratio, Static
from dspark_train.simulate.scenario import Scenario
from dspark_train.simulate.weather import Floats, Weather, draw
from dspark_train.simulate.world import World
from dspark_train.topology.resolve import Resolved

LAWS = ("balance", "static", "occupancy", "ratio", "oracle")
IDEAL_EVERY_S = 300.0
"""The best split is looked for so often, and whenever rates jump."""
CHANGE_FRAC = 0.05
"""A ratio of rates that changed by more is a real change, on which a move may be taken back."""


@dataclass(frozen=True, slots=True)
class Moved:
    """One move."""

    at_s: float
    now: Split
    to: Split


@dataclass(frozen=True)
class Course:
    """One law through one scenario with one seed."""

    samples: float
    ideal_samples: float
    moves: tuple[Moved, ...]
    num_reversals: int
    num_unprovoked: int
    """Reversals without a change of the rates since the move that they take back."""
    cost_samples: float = 0.0
    """What its moves were expected to cost, where the law says so."""
    trained: Floats = field(default_factory=lambda: np.zeros(0))
    """By tick."""
    splits: tuple[Split, ...] = ()
    """By tick: engines that are wanted, ranks that train."""

    @property
    def of_ideal(self) -> float:
        """Share of the ideal."""
        return self.samples / self.ideal_samples if self.ideal_samples else 0.0


def run(settings: Settings, scenario: Scenario, start: Split, law: str, seed: int, resolved: Resolved | None) -> Course:
    """One law, one seed. resolved: for scenarios that go through the real ledger."""
    layout = settings.layout
    if not layout.is_legal(start):
        raise UsageError(
            f"scenario {scenario.name}: {start.text()} is not a legal start: the topology holds {layout.min_engines} "
            f"engines or more and {layout.min_ranks} to {layout.max_ranks} ranks, and "
            f"{layout.most_beside(start.num_ranks)} engines beside {start.num_ranks} ranks: change start, or set"
        )
    weather = draw(scenario, max(layout.most_engines), layout.max_ranks, seed)
    world = World(scenario, layout, weather, _flow(scenario, resolved, layout, start, seed), start)
    return follow(world, law_named(law, settings, scenario))


def follow(world: World, law: Law) -> Course:
    """Let a law run to the end of a world."""
    ideal, moves, splits = ideal_by_tick(world), list[Moved](), list[Split]()
    trained = np.zeros(world.scenario.num_ticks)
    with _without_cycle_collector():
        while not world.is_over:
            wanted = law.wanted(world)
            if wanted != world.wanted:
                moves.append(Moved(world.at_s, world.wanted, wanted))
                world.order(wanted)
            splits.append(Split(world.wanted.num_engines, world.num_ranks))
            tick = world.tick_index
            trained[tick] = world.tick()
    back = reversals(moves, world.weather, world.scenario.tick_s)
    return Course(
        samples=world.trained,
        ideal_samples=float(ideal.sum()) * world.scenario.tick_s,
        moves=tuple(moves),
        num_reversals=len(back),
        num_unprovoked=sum(not provoked for provoked in back),
        cost_samples=law.cost_samples if isinstance(law, Balance) else 0.0,
        trained=trained,
        splits=tuple(splits),
    )


@contextlib.contextmanager
def _without_cycle_collector() -> Iterator[None]:
    """A course makes no cycles, and looking for them among all that a process has loaded takes half of its time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def law_named(name: str, settings: Settings, scenario: Scenario) -> Law:
    """The law of that name, at the start of a run."""
    changes = tuple(change.at_h * 3600 for change in scenario.changes)
    made: dict[str, Callable[[], Law]] = {
        "balance": lambda: Balance(settings),
        "static": Static,
        "occupancy": lambda: Occupancy(settings.layout),
        "ratio": lambda: Ratio(settings.layout),
        "oracle": lambda: Oracle(settings, changes),
    }
    return made[name]()


def ideal_by_tick(world: World) -> Floats:
    """Samples a second of the best legal split at every tick, were moves free and nothing ever failed."""
    weather, scenario = world.weather, world.scenario
    factors = np.stack([weather.engines, weather.ranks, weather.link])
    every = max(1, round(IDEAL_EVERY_S / scenario.tick_s))
    ideal = np.zeros(scenario.num_ticks)
    last, at = 0.0, -every
    for tick in range(scenario.num_ticks):
        is_same = tick > 0 and np.array_equal(factors[:, tick], factors[:, at])
        if not is_same and (tick - at >= every or np.abs(factors[:, tick] / factors[:, at] - 1).max() > 0.01):
            world.tick_index = tick
            best = world.model().best(world.layout, world.wanted)
            last, at = best.first.tokens_per_s if best is not None else 0.0, tick
        ideal[tick] = last
    world.tick_index = 0
    return ideal


def reversals(moves: Sequence[Moved], weather: Weather, tick_s: float) -> list[bool]:
    """For every move that takes a pool back the way it came last: whether the rates had changed in between."""
    found = []
    for pool in ("inference", "trainers"):
        last: tuple[int, float] | None = None
        for move in moves:
            step = move.to.of(pool) - move.now.of(pool)  # type: ignore[arg-type]
            sign = (step > 0) - (step < 0)
            if not sign:
                continue
            if last is not None and sign != last[0]:
                before, after = weather.ratio(int(last[1] / tick_s)), weather.ratio(int(move.at_s / tick_s))
                found.append(abs(after / before - 1) > CHANGE_FRAC)
            last = sign, move.at_s
    return found


def summary(courses: dict[str, list[Course]]) -> dict[str, object]:
    """The means over the seeds, as `simulate --json` prints them."""
    laws = {
        name: {
            "samples": fmean(course.samples for course in found),
            "of_ideal": fmean(course.of_ideal for course in found),
            "moves": fmean(len(course.moves) for course in found),
            "reversals": fmean(course.num_reversals for course in found),
            "unprovoked_reversals": fmean(course.num_unprovoked for course in found),
            "by_seed": [
                {"samples": course.samples, "of_ideal": course.of_ideal, "moves": len(course.moves)} for course in found
            ],
        }
        for name, found in courses.items()
    }
    ideal = fmean(course.ideal_samples for course in next(iter(courses.values())))
    return {"ideal_samples": ideal, "laws": laws}


def _flow(scenario: Scenario, resolved: Resolved | None, layout: Layout, start: Split, seed: int) -> Flow:
    if scenario.flow == "fluid" or resolved is None:
        return Fluid(scenario.buffer_samples)
    from dspark_train.simulate.ledgered import Ledgered

    return Ledgered(scenario, resolved, start.num_ranks, seed)
