"""One rate, learnt slice by slice."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dspark_train.balance.estimate import PRIOR_NOISE_FRAC, PRIOR_SLICES, Estimate, began

SLICE_S, MEMORY_S = 30.0, 600.0


def feed(rates: list[float], known: Estimate | None = None, at_s: float = 0.0) -> Estimate:
    for rate in rates:
        at_s += SLICE_S
        if known is None:
            known = began(rate * SLICE_S, SLICE_S, at_s)
        else:
            known = known.fed(rate * SLICE_S, SLICE_S, at_s, MEMORY_S)
    assert known is not None
    return known


def test_a_steady_rate_is_found_at_once_and_its_error_shrinks() -> None:
    errors = [feed([10.0] * num).error(num * SLICE_S) for num in (1, 3, 10, 40)]
    assert feed([10.0] * 10).value == pytest.approx(10)
    assert errors == sorted(errors, reverse=True)


def test_the_first_error_is_the_prior_s() -> None:
    # No spread was seen: of the three slices that count, two are the prior's, each off by its share of the value.
    expected = 10 * PRIOR_NOISE_FRAC * math.sqrt(PRIOR_SLICES / (PRIOR_SLICES + 1))
    assert feed([10.0]).error(SLICE_S) == pytest.approx(expected)


def test_the_error_covers_the_truth_as_often_as_it_says() -> None:
    dice = np.random.default_rng(3)
    off = []
    for _ in range(300):
        known = feed((10 + 2 * dice.standard_normal(12)).tolist())
        off.append(abs(known.value - 10) / known.error(12 * SLICE_S))
    # Of a normal distribution 68 % lie within one error; the prior weighs little after twelve slices.
    assert 0.6 < np.mean(np.array(off) < 1) < 0.85
    assert np.mean(np.array(off) < 3) > 0.97


def test_a_jump_is_noticed_within_two_slices() -> None:
    known = feed([10.0] * 30)
    known = feed([3.0] * 2, known, known.at_s)
    assert known.value == pytest.approx(3)
    assert known.weight_s <= 2 * SLICE_S


def test_noise_alone_is_no_jump() -> None:
    dice = np.random.default_rng(4)
    known = feed((10 * (1 + 0.1 * dice.standard_normal(400))).tolist())
    assert known.weight_s > MEMORY_S / 2
    assert known.value == pytest.approx(10, rel=0.05)


def test_a_drift_is_followed() -> None:
    known = feed([10 * (1 - 0.5 * place / 120) for place in range(121)])
    assert known.value == pytest.approx(5, rel=0.2)


def test_a_rate_that_is_not_seen_keeps_its_value_and_loses_its_certainty() -> None:
    known = feed([10.0] * 20)
    now_s = known.at_s
    assert known.age_s(now_s + 900) == 900
    # A fifth in an hour, and with the root of the time: a tenth in a quarter of an hour.
    grown = math.sqrt(known.error(now_s + 900) ** 2 - known.error(now_s) ** 2)
    assert grown == pytest.approx(10 * 0.1)


def test_a_jump_does_not_make_a_noisy_rate_look_sure() -> None:
    # Found by a drawn scenario: noise was taken for a jump, and the few slices since for a quiet rate.
    dice = np.random.default_rng(6)
    noisy = (10 * np.exp(0.4 * dice.standard_normal(30) - 0.08)).tolist()
    before = feed(noisy)
    after = feed([2.0] * 8, before, before.at_s)
    assert after.weight_s <= 8 * SLICE_S, "it was noticed at last"
    assert after.second_variance() >= 0.5 * before.second_variance()
