"""Scenarios drawn from a seed: sizes, rates, delays, noise, drift, jumps and deaths."""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, log

import numpy as np

from dspark_train.balance.layout import Layout
from dspark_train.balance.seen import Split
from dspark_train.simulate.scenario import Change, EngineKind, RankKind, Scenario, Sizes


@dataclass(frozen=True)
class Drawn:
    """A scenario and the nodes it plays on."""

    scenario: Scenario
    layout: Layout
    start: Split


def between(dice: np.random.Generator, low: float, high: float) -> float:
    """Log-uniform: each order of magnitude is as likely."""
    return exp(dice.uniform(log(low), log(high)))


def draw_scenario(seed: int) -> Drawn:
    """4 to 64 GPUs, shared by both pools or split between them; engines of 1, 2 or 4 of them."""
    dice = np.random.default_rng([20, seed])
    num_gpus, each = int(between(dice, 4, 65)), int(dice.choice([1, 1, 2, 4]))
    each = min(each, num_gpus // 2)
    is_shared = dice.random() < 0.7
    for_training = num_gpus if is_shared else int(dice.integers(1, num_gpus - each + 1))
    most_ranks = num_gpus - each if is_shared else for_training
    most = tuple(
        (num_gpus - k) // each if is_shared else (num_gpus - for_training) // each for k in range(1, most_ranks + 1)
    )
    step_packs = max(most_ranks, int(dice.choice([16, 32, 48, 60, 64, 96])))
    layout = Layout(1, 1, most, step_packs)
    ranks = int(dice.integers(1, most_ranks + 1))
    beside = layout.most_beside(ranks)
    start = Split(beside if is_shared else int(dice.integers(1, beside + 1)), ranks)
    # The rates match at a split somewhere in the middle, up to a factor of two either way.
    engine = between(dice, 0.5, 20)
    balance = dice.uniform(0.15, 0.85) * num_gpus
    rank = engine * max(1, balance / each) / max(1, num_gpus - balance) * between(dice, 0.5, 2)
    ideal = min(engine * num_gpus / each, rank * num_gpus)
    member_hours = num_gpus * between(dice, 1, 20)
    scenario = Scenario(
        name=f"drawn {seed}",
        hours=4,
        tick_s=30,
        start=Sizes(engines=start.num_engines, ranks=start.num_ranks),
        engine=EngineKind(samples_per_s=engine, start_s=between(dice, 30, 900)),
        rank=RankKind(samples_per_s=rank, start_s=between(dice, 20, 300), pause_s=between(dice, 2, 60)),
        buffer_samples=ideal * between(dice, 30, 300),
        noise_frac=float(dice.choice([0, 0.05, 0.1, 0.2, 0.5])),
        changes=tuple(changes(dice)),
        hours_between_failures=member_hours if dice.random() < 0.5 else None,
    )
    return Drawn(scenario, layout, start)


def changes(dice: np.random.Generator) -> list[Change]:
    """None, one or two changes of the rates, at once or as a drift, an hour apart or more."""
    times = sorted(dice.uniform(0.3, 3.7, int(dice.integers(0, 3))))
    kept = [at for place, at in enumerate(times) if place == 0 or at - times[0] >= 1]
    return [
        Change(
            at_h=float(at),
            over_h=float(dice.choice([0.0, dice.uniform(0.1, 0.6)])),
            engines=between(dice, 0.3, 2),
            ranks=between(dice, 0.5, 2) if dice.random() < 0.5 else 1.0,
        )
        for at in kept
    ]
