"""What happens to a run whatever it does: the rates as they change, their noise, deaths. Drawn ahead from a seed. Pure.

Every law meets the same weather, so laws differ by what they do alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dspark_train.simulate.scenario import Change, Scenario

Floats = NDArray[np.float64]
GROWTH = ("engines", "ranks", "link")


@dataclass(frozen=True, eq=False)
class Weather:
    """Factors by tick: of all engines, ranks, the link; noise of each engine and of the group; deaths."""

    engines: Floats
    ranks: Floats
    link: Floats
    engine_noise: Floats | None
    """[ticks, engines]; None without noise."""
    group_noise: Floats | None
    """[ticks, group sizes]: of a group of so many ranks, as the mean over its ranks."""
    deaths: dict[int, list[tuple[str, int]]]
    """Tick -> (pool, number of the engine)."""

    def ratio(self, tick: int) -> float:
        """Engines' to ranks' factor: what the best split follows."""
        return float(self.engines[tick] / self.ranks[tick])


def draw(scenario: Scenario, max_engines: int, max_ranks: int, seed: int) -> Weather:
    """The weather of one run."""
    dice = np.random.default_rng(seed)
    at_h = (np.arange(scenario.num_ticks) + 0.5) * scenario.tick_s / 3600
    engines, ranks, link = (_factors(at_h, scenario.changes, name) for name in GROWTH)
    engine_noise = group_noise = None
    if scenario.noise_frac:
        engine_noise = _noise(dice, (scenario.num_ticks, max_engines), scenario.noise_frac)
        of_ranks = _noise(dice, (scenario.num_ticks, max_ranks), scenario.noise_frac)
        group_noise = np.cumsum(of_ranks, axis=1) / np.arange(1, max_ranks + 1)
    deaths = _deaths(dice, scenario, max_engines, max_ranks)
    return Weather(engines, ranks, link, engine_noise, group_noise, deaths)


def _factors(at_h: Floats, changes: tuple[Change, ...], name: str) -> Floats:
    factors = np.ones_like(at_h)
    for change in sorted(changes, key=lambda change: change.at_h):
        to = float(getattr(change, name))
        begun = factors[np.searchsorted(at_h, change.at_h) - 1] if change.at_h > at_h[0] else 1.0
        done = np.clip((at_h - change.at_h) / change.over_h, 0, 1) if change.over_h else np.ones_like(at_h)
        factors = np.where(at_h >= change.at_h, begun + (to - begun) * done, factors)
    return factors


def _noise(dice: np.random.Generator, shape: tuple[int, int], noise_frac: float) -> Floats:
    """Log-normal with mean 1 and this standard deviation: rates are positive, and now and then far off."""
    sigma = np.sqrt(np.log1p(noise_frac**2))
    noise: Floats = np.exp(dice.standard_normal(shape) * sigma - sigma**2 / 2)
    return noise


def _deaths(
    dice: np.random.Generator, scenario: Scenario, max_engines: int, max_ranks: int
) -> dict[int, list[tuple[str, int]]]:
    """The listed ones, and those drawn: for each member that there could be, a Poisson process."""
    found: dict[int, list[tuple[str, int]]] = {}
    for failure in scenario.failures:
        tick = int(failure.at_h * 3600 / scenario.tick_s)
        found.setdefault(tick, []).append((failure.pool, failure.number))
    if scenario.hours_between_failures is not None:
        for pool, most in (("inference", max_engines), ("trainers", max_ranks)):
            chances = dice.random((scenario.num_ticks, most))
            per_tick = scenario.tick_s / 3600 / scenario.hours_between_failures
            for tick, place in np.argwhere(chances < per_tick):
                found.setdefault(int(tick), []).append((pool, int(place) + 1))
    return found
