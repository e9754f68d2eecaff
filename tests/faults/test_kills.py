"""Every process of a run is killed once: training goes on as if nothing had been."""

from __future__ import annotations

import pytest

from tests.faults.scenario import FEW_STEPS, Fault, Scenario

pytestmark = [pytest.mark.faults, pytest.mark.long, pytest.mark.real, pytest.mark.timeout(900)]

ONE_BY_ONE = Scenario(
    "kills",
    (
        Fault("kill", "engine-1 worker", at_step=3),
        Fault("kill", "engine-1 actor", at_step=6),
        Fault("kill", "rank-0", at_step=9),
        Fault("kill", "rank-1", at_step=12),
        Fault("kill", "master actor", at_step=15),
        Fault("kill", "ledger", at_step=18),
        Fault("scale", orders=("--trainers", "1"), at_step=21),
        Fault("kill", "rank-0", at_step=23),
    ),
    ("trainers.ranks.start=2", "checkpoint.every_steps=4"),
    num_steps=FEW_STEPS,
    step_s=2,
    # The last rank's death costs a rank's start, and the steps since the last checkpoint again.
    recovered_within_s=30,
    events=("engine.dead", "rank.dead", "store.dead", "ledger.dead", "group.rewound"),
)


def test_a_run_whose_processes_are_killed_one_by_one_trains_as_one_left_alone(survive):
    survive(ONE_BY_ONE)
