"""A disk that is full when a checkpoint is due: training goes on, the run says so, and the next checkpoint is good."""

from __future__ import annotations

import os

import pytest

from tests.faults.scenario import Fault, Scenario

pytestmark = [pytest.mark.faults, pytest.mark.long, pytest.mark.real, pytest.mark.timeout(900)]

DEGRADED = 4
FULL_DISK = Scenario(
    "full-disk",
    (
        Fault("fill_disk", at_step=10, repair="checkpoint.failed", status_code=DEGRADED),
        Fault("free_disk", at_step=18),
    ),
    ("checkpoint.every_steps=8",),
    step_s=0.5,
    disk_mib=64,
)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")
def test_a_checkpoint_that_finds_its_disk_full_is_told_of_and_the_next_one_is_good(survive):
    outcome = survive(FULL_DISK)
    assert outcome.state["checkpoint"]["step"] == FULL_DISK.num_steps
