"""What is shown of rates and predictions."""

from __future__ import annotations

import pytest

from dspark_train.balance.outlook import outlook
from dspark_train.balance.seen import Split

from .looks import Run, settings


def test_rates_and_what_neighbours_would_give() -> None:
    run, rule = Run(Split(3, 5)), settings(num_windows=100)
    run.decide(rule, 6)
    shown = outlook(rule, run.state, run.look())
    assert shown.inference is not None
    assert shown.rank is not None
    assert shown.inference.tokens_per_s == pytest.approx(30)
    assert shown.rank.tokens_per_s == pytest.approx(10 / 3)
    assert 0 < shown.rank.error_tokens_per_s < 1
    assert shown.rank.age_s == 30
    assert shown.now is not None
    assert shown.now.bottleneck == "trainers"
    assert {one.split: round(one.tokens_per_s, 6) for one in shown.neighbours} == {
        Split(2, 5): 16.666667,
        Split(3, 4): 13.333333,
        Split(4, 4): 13.333333,
        Split(2, 6): 20.0,
    }
    assert shown.best is not None
    assert shown.best.first.split == Split(2, 6)


def test_before_anything_is_known_nothing_is_predicted() -> None:
    run, rule = Run(Split(3, 5)), settings()
    run.decide(rule, 1)
    shown = outlook(rule, run.state, run.look())
    assert (shown.inference, shown.rank, shown.now, shown.neighbours, shown.best) == (None, None, None, (), None)
