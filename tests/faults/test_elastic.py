"""Runs that are scaled up and down while their processes are killed: the same steps as a run left alone."""

from __future__ import annotations

import pytest

from tests.faults.scenario import Fault, Scenario

pytestmark = [pytest.mark.faults, pytest.mark.real, pytest.mark.timeout(900)]

SCALED_AND_KILLED = Scenario(
    "scaled-and-killed",
    (
        Fault("scale", orders=("--inference", "+1"), at_step=3),
        Fault("scale", orders=("--trainers", "+1"), at_step=5),
        Fault("kill", "engine-2 api", at_step=7),
        Fault("kill", "rank-1", at_step=9),
        Fault("kill", "ledger", at_step=11),
        Fault("kill", "controller", at_step=13),
        Fault("kill", "master process", at_step=15),
        Fault("scale", orders=("--inference", "1", "--trainers", "1"), at_step=17),
    ),
    step_s=1.2,
    events=("engine.dead", "rank.dead", "ledger.dead", "controller.restarted", "store.dead"),
)
SHARDED = Scenario(
    "sharded",
    (
        Fault("scale", orders=("--trainers", "3"), at_step=3),
        Fault("scale", orders=("--trainers", "2"), at_step=5),
        Fault("kill", "rank-1", at_step=20),
    ),
    # Checkpoints often enough that the death takes back none of the steps that three ranks did.
    ("trainers.sharding=fsdp", "trainers.ranks.start=2", "checkpoint.every_steps=4"),
    step_s=0.8,
    events=("group.rewound",),
)


def test_a_run_scaled_up_and_down_with_every_kind_of_process_killed_trains_as_one_left_alone(survive):
    outcome = survive(SCALED_AND_KILLED)
    assert {step["num_ranks"] for step in outcome.steps} == {1, 2}


def test_a_sharded_run_is_resized_in_memory_and_goes_back_to_a_checkpoint_after_a_death(survive):
    outcome = survive(SHARDED)
    assert {step["num_ranks"] for step in outcome.steps} >= {2, 3}
    assert [event["kind"] for event in outcome.events].count("group.rewound") == 1
