"""Random faults, drawn from a seed: the same seed gives the same faults. Pure."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

from tests.faults.scenario import Fault, Scenario

KILLED = (
    "engine-1 api", "engine-1 worker", "engine-1 actor", "engine-2 api", "rank-0", "rank-1",
    "ledger", "controller", "master process", "master actor",
)  # fmt: skip
STOPPED = ("engine-1 api", "engine-2 actor", "rank-0", "rank-1", "ledger", "controller", "master process")
LIES = ("nan", "zeros", "constant", "wrong_length", "wrong_tokens", "stale_key", "drop", "error_500", "hang")
SHORT_STOP_S = 3.0
"""Shorter than any silence that counts as a death."""
NEVER = 1000
"""Deaths after which somebody is given up."""


def soak(seed: int, num_faults: int, num_steps: int, step_s: float) -> Scenario:
    """A run with two engines and two ranks, whose second ones come and go, and ``num_faults`` faults."""
    draw = random.Random(seed)
    spread = num_steps // (2 * num_faults)  # the first half: what comes late needs time to be repaired
    faults = tuple(_faults(draw, num_faults, spread))
    overrides = (
        "engines.count.start=2",
        "trainers.ranks.start=2",
        # The death of the only rank takes back the steps since the last checkpoint, and steps are long here.
        "checkpoint.every_steps=1",
        "engines.request_timeout_s=5",
        "supervision.silence_s=12",
        f"supervision.max_deaths={NEVER}",
        "ledger.max_attempts=20",
    )
    return Scenario(f"soak-{seed}", faults, overrides, step_s=step_s, recovered_within_s=45, num_steps=num_steps)


def _faults(draw: random.Random, num_faults: int, spread: int) -> Iterator[Fault]:
    num = {"inference": 2, "trainers": 2}
    kinds: dict[str, Callable[[int], Fault]] = {
        "kill": lambda step: Fault("kill", _alive(draw, KILLED, num), at_step=step),
        "stop": lambda step: Fault("stop", _alive(draw, STOPPED, num), at_step=step, for_s=SHORT_STOP_S, repair=""),
        "lie": lambda step: Fault("lie", "engines", at_step=step, mode=draw.choice(LIES), count=draw.randint(1, 3)),
        "scale": lambda step: _scale(draw, num, step),
    }
    for place in range(num_faults):
        (kind,) = draw.choices(list(kinds), weights=(5, 2, 2, 2))
        yield kinds[kind](2 + place * spread)


def _alive(draw: random.Random, whom: tuple[str, ...], num: dict[str, int]) -> str:
    gone = {"engine-2"} if num["inference"] == 1 else set()
    gone |= {"rank-1"} if num["trainers"] == 1 else set()
    return draw.choice([one for one in whom if one.partition(" ")[0] not in gone])


def _scale(draw: random.Random, num: dict[str, int], step: int) -> Fault:
    pool = draw.choice(list(num))
    num[pool] = 3 - num[pool]
    return Fault("scale", orders=(f"--{pool}", str(num[pool])), at_step=step)
