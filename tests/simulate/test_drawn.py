"""A thousand drawn scenarios: what the balance makes of sizes, rates, delays, noise, drift and deaths at random."""

from __future__ import annotations

import os
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from math import sqrt
from multiprocessing import get_context

import numpy as np
import pytest

from dspark_train.balance.rule import Rule, Settings
from dspark_train.simulate.run import run
from dspark_train.topology.schema import Balance

from .drawn import draw_scenario

NUM = 1000
NUM_A_TASK = 25


@dataclass(frozen=True)
class Played:
    """One scenario. below: by how much of the ideal it was worse than static, its moves' cost taken off."""

    seed: int
    noise_frac: float
    of_ideal: float
    num_moves: int
    num_unprovoked: int
    below: float = 0.0
    luck: float = 0.0


def play(seed: int) -> Played:
    """A scenario with the balance, and where that moved without it."""
    drawn = draw_scenario(seed)
    settings, noise_frac = Settings(Rule.of(Balance()), drawn.layout), drawn.scenario.noise_frac
    ours = run(settings, drawn.scenario, drawn.start, "balance", seed, None)
    below = luck = 0.0
    if ours.moves:  # without a move it is the static course, tick by tick
        static = run(settings, drawn.scenario, drawn.start, "static", seed, None)
        below = (static.samples - ours.cost_samples - ours.samples) / ours.ideal_samples
        luck = 2 * noise_frac / sqrt(drawn.scenario.num_ticks)
    return Played(seed, noise_frac, ours.of_ideal, len(ours.moves), ours.num_unprovoked, below, luck)


@pytest.mark.sim
@pytest.mark.timeout(3600)
def test_a_thousand_drawn_scenarios() -> None:
    """Never below static by more than what the moves were to cost: strictly where nothing is noisy.

    Noise makes two courses differ by luck: they have different members, each with noise of its own. The mean of one
    member's rate over a run has the standard deviation noise_frac / sqrt(ticks); two of them are allowed.
    """
    cores = len(os.sched_getaffinity(0))
    with ProcessPoolExecutor(cores, mp_context=get_context("spawn")) as pool:
        found = list(pool.map(play, range(NUM), chunksize=NUM_A_TASK))
    of_ideal = [one.of_ideal for one in found]
    unprovoked = [(one.seed, one.noise_frac) for one in found if one.num_unprovoked]
    figures = {
        "median": np.median(of_ideal),
        "worst 1 %": np.quantile(of_ideal, 0.01),
        "worst": min(of_ideal),
        "moves": sum(one.num_moves for one in found),
        "unprovoked reversals in (seed, noise)": unprovoked,
        "below static": [one for one in found if one.below > 0],
    }
    print(figures)
    assert np.median(of_ideal) >= 0.97, figures
    assert np.quantile(of_ideal, 0.01) >= 0.85, figures
    assert max(round(one.below - one.luck, 4) for one in found) <= 0, figures
    assert all(noise_frac >= 0.5 for _, noise_frac in unprovoked), figures
