"""Engines that answer wrongly: nothing wrong is trained on, and an engine that goes on lying is replaced."""

from __future__ import annotations

import pytest

from tests.faults.scenario import Fault, Scenario

pytestmark = [pytest.mark.faults, pytest.mark.long, pytest.mark.real, pytest.mark.timeout(900)]

WRONG = (
    "nan", "zeros", "constant", "wrong_length", "wrong_tokens", "non_finite", "wrong_answer", "error_500",
)  # fmt: skip
NUM_WRONG = 2
"""Fewer in a row than make an engine a liar."""
LATE = ("stale_key", "drop", "hang")
NUM_LATE = 1
"""What never arrives is lost at its deadline; two in a row make an engine hung."""
ENGINES_REPLACED = ("nan", "wrong_tokens", "hang")
PATIENT = ("engines.request_timeout_s=8", "ledger.max_attempts=10")

FEW_LIES = Scenario(
    "few-lies",
    tuple(
        Fault(
            "lie",
            "engine-1",
            at_step=3 + 3 * place,
            mode=mode,
            count=NUM_LATE if mode in LATE else NUM_WRONG,
            is_found=True,
        )
        for place, mode in enumerate((*WRONG, *LATE))
    ),
    PATIENT,
    step_s=1,
)
MANY_LIES = Scenario(
    "many-lies",
    tuple(
        Fault("lie", "engine-1", at_step=3 + 3 * place, mode=mode, count=1000, repair="engine.feeding")
        for place, mode in enumerate(ENGINES_REPLACED)
    ),
    PATIENT,
    step_s=0.9,
    events=("engine.dead",),
)


def test_samples_that_are_wrong_or_lost_are_made_again_and_never_trained_on(survive):
    outcome = survive(FEW_LIES)
    assert outcome.state["ledger"]["regenerated"] >= NUM_WRONG * len(WRONG) + NUM_LATE * len(LATE)
    assert "engine.dead" not in {event["kind"] for event in outcome.events}


def test_an_engine_that_goes_on_lying_is_replaced(survive):
    outcome = survive(MANY_LIES)
    assert [event["kind"] for event in outcome.events].count("engine.dead") >= len(ENGINES_REPLACED)
