"""Throughput of a split, and the best of all."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspark_train.balance.layout import Layout
from dspark_train.balance.model import Model, Rates, distance, neighbours
from dspark_train.balance.seen import Split

from .looks import EIGHT_NODES


def model(engine: float, rank: float, packs: int = 60, num: int = 8, link: float = math.inf) -> Model:
    return Model(Rates((engine,) * num, rank, packs, link))


@pytest.mark.parametrize(
    ("num_ranks", "share"), [(1, 16), (2, 8), (3, 6), (4, 4), (5, 4), (6, 3), (7, 3), (8, 2), (15, 2), (16, 1)]
)
def test_training_is_a_staircase(num_ranks: int, share: int) -> None:
    # The rank with most packs has ceil(16 / k) of them, so a step takes as long as one rank does for so many.
    assert model(1, 2.0, packs=16).trainers(num_ranks) == pytest.approx(16 * 2.0 / share)


def test_a_part_of_the_step_that_no_rank_shortens_bounds_it() -> None:
    made = Model(Rates((1.0,), 2.0, 16, fixed_packs=4))
    assert made.trainers(16) == pytest.approx(16 * 2.0 / 5)


def test_engines_that_are_not_there_are_as_the_mean_of_those_that_are() -> None:
    made = Model(Rates((10.0, 4.0), 1.0, 60))
    assert [made.engines(num) for num in range(5)] == [0, 10, 14, 21, 28]


@pytest.mark.parametrize(
    ("split", "link", "tokens_per_s", "bottleneck"),
    [
        (Split(2, 6), math.inf, 20.0, None),
        (Split(1, 6), math.inf, 10.0, "inference"),
        (Split(3, 5), math.inf, 50 / 3, "trainers"),
        (Split(2, 6), 5.0, 5.0, "link"),
    ],
)
def test_the_least_of_engines_ranks_and_link_is_the_throughput(split, link, tokens_per_s, bottleneck) -> None:  # type: ignore[no-untyped-def]
    found = model(10, 10 / 3, link=link).predict(split)
    assert found.tokens_per_s == pytest.approx(tokens_per_s)
    assert found.bottleneck == bottleneck


def test_the_best_split_of_eight_nodes_and_how_much_worse_the_next_is() -> None:
    best = model(10, 10 / 3).best(EIGHT_NODES, Split(6, 2))
    assert best is not None
    assert best.first.split == Split(2, 6)
    assert best.second is not None
    # (3, 5) trains 5 x 10/3 of the 20.
    assert best.second.split == Split(3, 5)
    assert best.lead_frac == pytest.approx(1 / 6)


def test_no_more_engines_are_asked_for_than_ranks_can_use() -> None:
    apart = Layout(1, 1, (100,) * 4, 60)
    best = model(10, 10, num=2).best(apart, Split(2, 1))
    assert best is not None
    assert best.first.split == Split(4, 4)


def test_engines_that_are_too_many_already_stay() -> None:
    apart = Layout(1, 1, (100,) * 4, 60)
    best = model(10, 10, num=30).best(apart, Split(30, 1))
    assert best is not None
    assert best.first.split == Split(30, 4)


layouts = st.builds(
    Layout,
    min_engines=st.integers(1, 3),
    min_ranks=st.integers(1, 3),
    most_engines=st.lists(st.integers(0, 9), min_size=1, max_size=9).map(tuple),
    step_packs=st.integers(1, 40),
)


@given(
    layout=layouts,
    engines=st.lists(st.floats(0.1, 10), min_size=1, max_size=9).map(tuple),
    rank=st.floats(0.1, 10),
    link=st.one_of(st.just(math.inf), st.floats(0.5, 40)),
    now=st.builds(Split, st.integers(1, 9), st.integers(1, 9)),
)
def test_the_best_is_the_best_of_all_that_are_legal(layout, engines, rank, link, now) -> None:  # type: ignore[no-untyped-def]
    made = Model(Rates(engines, rank, layout.step_packs, link))
    every = list(layout.splits())
    best = made.best(layout, now)
    assert (best is None) == (not every)
    if best is None:
        return
    assert layout.is_legal(best.first.split)
    assert best.first.tokens_per_s == pytest.approx(max(made.throughput(split) for split in every))
    others = [made.throughput(split) for split in every if split != best.first.split]
    assert (best.second is None) <= (not [s for s in neighbours(best.first.split) if layout.is_legal(s)])
    if best.second is not None:
        assert best.second.tokens_per_s <= max(others) * (1 + 1e-9)


def test_of_equal_splits_the_nearest_is_best() -> None:
    # One rank trains 1/s: any engine is enough.
    one_rank = Layout(1, 1, (9,), 60)
    best = model(10, 1).best(one_rank, Split(5, 1))
    assert best is not None
    assert best.first.split == Split(5, 1)
    assert distance(Split(2, 6), Split(4, 4)) == 4
