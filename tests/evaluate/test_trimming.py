"""Trimming verifies the likeliest tokens, as many as pay."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspark_train.evaluate.trimming import StepCost, admitted, estimate

FLAT = StepCost(((1, 10.0), (1000, 10.0)))
LINEAR = StepCost(((1, 1.0), (2, 2.0)))


def test_cost_lies_on_straight_lines_and_never_falls():
    cost = StepCost(((10, 5.0), (1, 4.0), (20, 3.0)))
    assert cost.ms(np.array([1.0, 10.0, 20.0])).tolist() == [4.0, 5.0, 5.0]
    assert LINEAR.ms(np.array([1.5, 8.0])).tolist() == [1.5, 8.0]


def test_all_is_verified_where_a_larger_step_costs_nothing():
    survival = np.array([[0.5, 0.01], [0.9, 0.8]])
    assert admitted(survival, FLAT).tolist() == [2, 2]


def test_where_every_token_costs_alike_only_the_likeliest_is_worth_it():
    # three tokens for the price of two are 1.5 a ms at best; any token below the mean only lowers it
    assert admitted(np.array([[0.9, 0.2]]), LINEAR).tolist() == [0]
    cheap = StepCost(((1, 10.0), (2, 11.0)))
    assert admitted(np.array([[0.9, 0.05]]), cheap).tolist() == [1]


@given(st.lists(st.lists(st.floats(0, 1), min_size=3, max_size=3), min_size=1, max_size=6))
def test_of_each_request_the_first_tokens_are_taken(rows):
    survival = np.array(rows).cumprod(axis=1)
    kept = admitted(survival, StepCost(((1, 5.0), (2, 6.0))))
    assert ((kept >= 0) & (kept <= 3)).all()
    # what is left out is nowhere likelier than what is taken
    taken = [survival[i, k] for i, num in enumerate(kept) for k in range(num)]
    left = [survival[i, k] for i, num in enumerate(kept) for k in range(num, 3)]
    assert not taken or not left or min(taken) >= max(left) - 1e-12


def test_a_head_that_knows_saves_what_would_be_refused_and_loses_nothing():
    accepted = [0, 4] * 50
    sure = np.array([[1e-9] * 4, [1 - 1e-9] * 4] * 50)
    found = estimate(sure, accepted, load=8, cost=StepCost(((1, 2.0), (100, 100.0))))
    assert found.accept_len == pytest.approx(found.whole_accept_len)
    assert found.verified_frac == pytest.approx(0.5, abs=0.05)
    assert found.speedup > 1.2


def test_where_steps_cost_the_same_trimming_changes_nothing():
    drawn = np.random.default_rng(1)
    found = estimate(drawn.random((50, 4)), drawn.integers(0, 5, 50).tolist(), load=4, cost=FLAT)
    assert (found.verified_frac, found.speedup) == (1.0, pytest.approx(1.0))
