"""Processes that hang without dying: found out by their silence, replaced, or waited for where they come back."""

from __future__ import annotations

import pytest

from tests.faults.scenario import FEW_STEPS, Fault, Scenario

pytestmark = [pytest.mark.faults, pytest.mark.long, pytest.mark.real, pytest.mark.timeout(900)]

SILENCE_S = 8
STOPS = Scenario(
    "stops",
    (
        Fault("stop", "engine-1 api", at_step=3),
        Fault("stop", "engine-1 actor", at_step=5),
        Fault("stop", "rank-1", at_step=7),
        Fault("stop", "ledger", at_step=9),
        Fault("stop", "controller", at_step=11, for_s=SILENCE_S + 4, repair=""),
        Fault("stop", "rank-0", at_step=13, for_s=SILENCE_S / 2, repair=""),
        Fault("stop", "master process", at_step=15, for_s=3, repair=""),
        Fault("stop", "master process", at_step=17, for_s=14),
    ),
    (
        "trainers.ranks.start=2",
        "trainers.group_timeout_s=30",
        "engines.request_timeout_s=5",
        f"supervision.silence_s={SILENCE_S}",
        "store.client_ttl_s=10",
    ),
    num_steps=FEW_STEPS,
    step_s=2.2,
    recovered_within_s=30,
    events=("engine.dead", "rank.dead", "ledger.dead", "store.dead"),
)


def test_a_run_whose_processes_stop_answering_one_by_one_trains_as_one_left_alone(survive):
    survive(STOPS)
