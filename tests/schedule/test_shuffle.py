from collections.abc import Iterator
from itertools import islice

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspark_train.schedule.shuffle import permutation, shuffle_keys, split_rows

SEEDS = st.integers(0, 2**63 - 1)


def splitmix64(state: int) -> Iterator[int]:
    """Vigna's splitmix64.c, word for word."""
    while True:
        state = (state + 0x9E3779B97F4A7C15) % 2**64
        z = state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) % 2**64
        yield z ^ (z >> 31)


def start_of(seed: int, stream: int) -> int:
    return next(splitmix64(next(splitmix64(seed)) ^ stream))


def test_the_reference_generator_gives_the_published_values():
    assert list(islice(splitmix64(1234567), 3)) == [6457827717110365317, 3203168211198807973, 9817491932198370423]


@given(SEEDS, st.integers(0, 2**32), st.integers(0, 50))
def test_keys_are_those_of_splitmix64(seed, stream, num):
    assert shuffle_keys(seed, stream, num).tolist() == list(islice(splitmix64(start_of(seed, stream)), num))


@given(SEEDS, st.integers(0, 1000), st.integers(0, 200))
def test_a_permutation_has_each_index_once_in_the_order_of_its_keys(seed, epoch, num):
    keys = list(islice(splitmix64(start_of(seed, epoch + 1)), num))
    assert permutation(seed, epoch, num).tolist() == sorted(range(num), key=keys.__getitem__)


def test_epochs_and_seeds_give_other_orders():
    orders = {tuple(permutation(seed, epoch, 50).tolist()) for seed in range(5) for epoch in range(5)}
    assert len(orders) == 25


def test_shuffling_a_million_leaves_no_trace_of_the_order():
    order = permutation(42, 0, 1_000_000)
    assert abs(np.corrcoef(order, np.arange(1_000_000))[0, 1]) < 0.005


@given(SEEDS, st.integers(1, 300), st.floats(0, 0.999))
def test_a_split_loses_no_row_and_always_trains_something(seed, num, frac):
    train, held = split_rows(seed, num, frac)
    assert sorted([*train.tolist(), *held.tolist()]) == list(range(num))
    assert len(train) >= 1
    assert list(train) == sorted(train)
    assert (len(held) >= 1) == (frac > 0 and num >= 2)


@pytest.mark.parametrize(
    ("num", "frac", "num_held"), [(100, 0.1, 10), (100, 0.0, 0), (3, 0.01, 1), (2, 0.99, 1), (1, 0.5, 0)]
)
def test_the_share_held_out(num, frac, num_held):
    assert len(split_rows(7, num, frac)[1]) == num_held


def test_the_split_does_not_depend_on_the_share():
    few, many = split_rows(3, 100, 0.1)[1], split_rows(3, 100, 0.3)[1]
    assert set(few.tolist()) <= set(many.tolist())


def test_validation_rows_are_shuffled_so_that_a_part_stands_for_the_whole():
    held = split_rows(3, 1000, 0.5)[1]
    assert 400 < held[:100].mean() < 600
