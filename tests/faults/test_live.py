"""Runs on the real vLLM that are scaled while their processes are killed: the same steps as a live run left alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.faults.test_elastic import SCALED_AND_KILLED

pytestmark = [pytest.mark.faults, pytest.mark.soak, pytest.mark.engine, pytest.mark.timeout(1800)]

LIVE = replace(
    SCALED_AND_KILLED,
    name="live",
    base=("engines.entry=dspark_train.engine.vllm_entry", "engines.start_timeout_s=300"),
    # A live engine's batching moves the last bits of hidden states.
    same_loss=1e-4,
    # An engine takes 30-90 s to start, two at once longer.
    step_s=4,
    recovered_within_s=30,
)


def test_a_live_run_scaled_up_and_down_with_every_kind_of_process_killed_trains_as_one_left_alone(survive):
    outcome = survive(LIVE)
    assert {step["num_ranks"] for step in outcome.steps} == {1, 2}
