"""A thousand drawn scenarios: what the balance makes of sizes, rates, delays, noise, drift and deaths at random."""

from __future__ import annotations

from math import sqrt

import numpy as np
import pytest

from dspark_train.balance.rule import Rule, Settings
from dspark_train.simulate.run import run
from dspark_train.topology.schema import Balance

from .drawn import draw_scenario

NUM = 1000


@pytest.mark.sim
@pytest.mark.timeout(3600)
def test_a_thousand_drawn_scenarios() -> None:
    """Never below static by more than what the moves were to cost: strictly where nothing is noisy.

    Noise makes two courses differ by luck: they have different members, each with noise of its own. The mean of one
    member's rate over a run has the standard deviation noise_frac / sqrt(ticks); two of them are allowed.
    """
    rule = Rule.of(Balance())
    of_ideal, short, unprovoked, moves = [], {}, [], 0
    for seed in range(NUM):
        drawn = draw_scenario(seed)
        settings = Settings(rule, drawn.layout)
        ours = run(settings, drawn.scenario, drawn.start, "balance", seed, None)
        of_ideal.append(ours.of_ideal)
        moves += len(ours.moves)
        if ours.num_unprovoked:
            unprovoked.append((seed, drawn.scenario.noise_frac))
        if ours.moves:  # without a move it is the static course, tick by tick
            static = run(settings, drawn.scenario, drawn.start, "static", seed, None)
            below = (static.samples - ours.cost_samples - ours.samples) / ours.ideal_samples
            luck = 2 * drawn.scenario.noise_frac / sqrt(drawn.scenario.num_ticks)
            short[seed] = round(below - luck, 4), round(below, 4), drawn.scenario.noise_frac
    figures = {
        "median": np.median(of_ideal),
        "worst 1 %": np.quantile(of_ideal, 0.01),
        "worst": min(of_ideal),
        "moves": moves,
        "unprovoked reversals in (seed, noise)": unprovoked,
        "below static in (seed, (beyond luck, below, noise))": [one for one in short.items() if one[1][1] > 0],
    }
    print(figures)
    assert np.median(of_ideal) >= 0.97, figures
    assert np.quantile(of_ideal, 0.01) >= 0.85, figures
    assert max(beyond for beyond, _, _ in short.values()) <= 0, figures
    assert all(noise_frac >= 0.5 for _, noise_frac in unprovoked), figures
