"""Calibration is over tokens that were really judged, and a temperature that was put in is found again."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspark_train.evaluate.calibration import (
    MAX_TEMPERATURE,
    MIN_TEMPERATURE,
    by_position,
    confidences,
    fit_temperature,
    overall,
    prefix_products,
    reached,
    reliability,
)

NUM, DRAFTED = 20_000, 3


def drawn(temperature):
    """Logits, and what stood where a token stands with the probability that logits / temperature say."""
    source = np.random.default_rng(5)
    logits = source.normal(0, 2, (NUM, DRAFTED))
    stood = source.random((NUM, DRAFTED)) < confidences(logits, temperature)
    return logits, stood.cumprod(axis=1).sum(axis=1).tolist()


def test_a_position_is_judged_where_all_before_it_stood():
    there, stood = reached([0, 2, 3], 3)
    assert there.astype(int).tolist() == [[1, 0, 0], [1, 1, 1], [1, 1, 1]]
    assert stood.astype(int).tolist() == [[0, 0, 0], [1, 1, 0], [1, 1, 1]]


def test_the_error_is_the_mean_gap_of_the_bins():
    found = reliability(np.array([0.05, 0.05, 0.95, 0.95]), np.array([True, False, True, True]))
    assert [bin_.num for bin_ in found.bins] == [2, 2]
    assert found.ece == pytest.approx(0.5 * 0.45 + 0.5 * 0.05)
    assert (found.mean_confidence, found.accepted_frac) == (pytest.approx(0.5), 0.75)


def test_certainty_falls_into_the_last_bin_and_nothing_has_no_error():
    assert reliability(np.array([1.0]), np.array([True])).ece == 0
    assert reliability(np.array([]), np.array([], dtype=bool)).num == 0


def test_a_head_that_is_right_has_next_to_no_error():
    logits, accepted = drawn(1.0)
    assert overall(confidences(logits), accepted).ece < 0.01
    assert all(each.ece < 0.03 for each in by_position(confidences(logits), accepted))
    for said, did in prefix_products(confidences(logits), accepted):
        assert said == pytest.approx(did, abs=0.01)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.5])
def test_the_temperature_that_was_put_in_is_found_and_mends_the_error(temperature):
    logits, accepted = drawn(temperature)
    found = fit_temperature(logits, accepted)
    assert found == pytest.approx(temperature, rel=0.05)
    assert overall(confidences(logits, found), accepted).ece < 0.01


def test_a_temperature_stays_within_bounds_where_everything_or_nothing_stands():
    sure = np.full((10, 2), 3.0)
    assert MIN_TEMPERATURE <= fit_temperature(sure, [2] * 10) < 0.1  # sharper makes no difference any more
    assert fit_temperature(sure, [0] * 10) == pytest.approx(MAX_TEMPERATURE)
    assert fit_temperature(np.zeros((0, 2)), []) == 1.0


@given(st.floats(-700, 700), st.floats(0.05, 20))
def test_a_confidence_is_a_probability(logit, temperature):
    assert 0 <= float(confidences(np.array([logit]), temperature)[0]) <= 1
