"""Orders to lie, and what each lie looks like to those who are to notice it."""

import os

import numpy as np
import pytest

from dspark_train.engine.lies import Orders, SpoiltStates, spoilt_tokens
from dspark_train.engine.stand_in_states import StandInStates

STATES = StandInStates((1, 2), 16)
IDS = [4, 5, 6, 7]


@pytest.fixture
def give(tmp_path):
    """Writes an order; each is newer than the one before, however coarse the file system's clock."""
    path, now_ns = tmp_path / "lies.json", [10**18]

    def write(text: str) -> None:
        path.write_text(text)
        now_ns[0] += 10**9
        os.utime(path, ns=(now_ns[0], now_ns[0]))

    write.path = path
    return write


def modes(orders: Orders, num: int) -> list[str]:
    return [order.mode if (order := orders.next()) else "" for _ in range(num)]


def test_without_a_file_the_truth_is_told(tmp_path):
    assert modes(Orders(tmp_path / "none", 1), 2) == ["", ""]


def test_an_order_holds_for_its_count_and_can_be_given_again(give):
    orders = Orders(give.path, 1)
    give('{"mode": "nan", "count": 2}')
    assert modes(orders, 4) == ["nan", "nan", "", ""]
    give('{"mode": "hang", "count": 1}')
    assert modes(orders, 2) == ["hang", ""]


def test_an_order_without_a_count_holds_until_it_is_taken_back(give):
    give('{"mode": "drop"}')
    orders = Orders(give.path, 1)
    assert modes(orders, 3) == ["drop"] * 3
    give("")
    assert modes(orders, 2) == ["", ""]
    give.path.unlink()
    assert modes(orders, 1) == [""]


def test_a_counted_order_is_not_for_an_engine_that_starts_later(give):
    give('{"mode": "nan", "count": 2}')
    assert modes(Orders(give.path, 1), 2) == ["", ""]


def test_an_order_for_one_engine_leaves_the_others_alone(give):
    first, second = Orders(give.path, 1), Orders(give.path, 2)
    give('{"mode": "zeros", "count": 1, "port": 2}')
    assert modes(first, 1) == [""]
    assert modes(second, 2) == ["zeros", ""]


@pytest.mark.parametrize("text", ["{", '{"mode": "other"}', '{"mode": "nan", "cuont": 3}'])
def test_an_order_that_cannot_be_read_says_why_and_is_no_lie(give, text):
    orders = Orders(give.path, 1)
    give(text)
    assert modes(orders, 1) == [""]
    assert str(give.path) in orders.problem


def test_spoilt_states_are_what_their_mode_says():
    spoilt, honest = SpoiltStates(STATES), STATES.of(IDS)
    for mode, fact in {
        "nan": lambda hidden: np.isnan(hidden).sum() == 1,
        "zeros": lambda hidden: not hidden.any(),
        "constant": lambda hidden: (hidden == hidden[:1]).all() and hidden.any(),
        "wrong_tokens": lambda hidden: np.array_equal(hidden, honest),
    }.items():
        spoilt.mode = mode
        assert fact(spoilt.of(IDS)), mode


def test_spoilt_tokens_are_others_or_of_another_number():
    assert spoilt_tokens("wrong_tokens", IDS) == [5, 6, 7, 8]
    assert len(spoilt_tokens("wrong_length", IDS)) == 5
    assert spoilt_tokens("nan", IDS) == IDS
