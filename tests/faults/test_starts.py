"""Members that do not come up, or not for long: an order is rolled back, a crash loop given up, the run goes on."""

from __future__ import annotations

import pytest

from tests.faults.scenario import Fault, Scenario

pytestmark = [pytest.mark.faults, pytest.mark.long, pytest.mark.real, pytest.mark.timeout(900)]

DEGRADED = 4
MAX_DEATHS = 5
FAILED_STARTS = Scenario(
    "failed-starts",
    (
        Fault("scale", orders=("--inference", "2"), at_step=3, ends="rolled back"),
        Fault("kill", "engine-2 api", overlaps=True, repair="scale.rolled_back"),
        Fault("scale", orders=("--trainers", "2"), at_step=5, ends="rolled back"),
        Fault("kill", "rank-1", overlaps=True, repair="scale.rolled_back"),
        Fault("scale", orders=("--inference", "2"), at_step=7),
        *(Fault("kill", "engine-2 api", at_step=9) for _ in range(MAX_DEATHS - 1)),
        Fault("kill", "engine-2 api", at_step=9, repair="engine.given_up", status_code=DEGRADED),
    ),
    (f"supervision.max_deaths={MAX_DEATHS}",),
    step_s=1.2,
)


def test_a_member_that_never_starts_is_rolled_back_and_one_in_a_crash_loop_is_given_up(survive):
    outcome = survive(FAILED_STARTS)
    texts = [event["text"] for event in outcome.events if event["kind"] == "scale.rolled_back"]
    assert len(texts) == 2
    assert "engine-2 did not start" in texts[0]
    assert "rank-1 did not start" in texts[1]
    given_up = [event["text"] for event in outcome.events if event["kind"] == "engine.given_up"]
    assert f"engine-2 died {MAX_DEATHS} times" in given_up[0]
