"""Deaths at awkward moments: while the group changes, while an engine drains, while the controller follows an order."""

from __future__ import annotations

import pytest

from tests.faults.scenario import FEW_STEPS, Fault, Scenario

pytestmark = [pytest.mark.faults, pytest.mark.long, pytest.mark.real, pytest.mark.timeout(900)]

AT_A_CHANGE = Scenario(
    "at-a-change",
    (
        Fault("scale", orders=("--trainers", "2"), at_step=3),
        Fault("kill", "controller", overlaps=True),
        Fault("scale", orders=("--trainers", "1"), at_step=5),
        Fault("kill", "rank-1", overlaps=True, repair=""),
        Fault("scale", orders=("--inference", "2", "--trainers", "2"), at_step=7),
        Fault("scale", orders=("--inference", "1"), at_step=9),
        Fault("kill", "engine-2 api", overlaps=True, repair=""),
        Fault("scale", orders=("--trainers", "1"), at_step=11),
        Fault("kill", "ledger", overlaps=True),
    ),
    num_steps=FEW_STEPS,
    step_s=1.2,
    events=("controller.adopted", "ledger.replaced"),
)


def test_whoever_dies_while_an_order_is_under_way_the_order_ends_and_the_steps_stay_the_same(survive):
    survive(AT_A_CHANGE)
