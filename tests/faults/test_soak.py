"""Faults in a random order. The seed is printed; DSPARK_SOAK_SEED sets it, to see a failure again."""

from __future__ import annotations

import os

import pytest

from tests.faults.soak import soak

pytestmark = [pytest.mark.faults, pytest.mark.real]

SEED_VARIABLE = "DSPARK_SOAK_SEED"
SEED = 1


def seed() -> int:
    """The seed of this session."""
    return int(os.environ.get(SEED_VARIABLE) or SEED)


def test_a_seed_gives_the_same_faults_again_and_another_seed_others():
    first, again, other = (soak(one, 20, 64, 1).faults for one in (3, 3, 4))
    assert first == again != other


@pytest.mark.timeout(1200)
def test_a_run_under_a_few_random_faults_trains_as_one_left_alone(survive):
    print(f"{SEED_VARIABLE}={seed()}")
    survive(soak(seed(), num_faults=6, num_steps=48, step_s=1.8))


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_a_run_under_twenty_random_faults_trains_as_one_left_alone(survive):
    print(f"{SEED_VARIABLE}={seed()}")
    survive(soak(seed(), num_faults=20, num_steps=64, step_s=12))
