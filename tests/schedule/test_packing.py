import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspark_train.errors import DataError
from dspark_train.schedule.packing import pack_rows
from dspark_train.schedule.unit import Piece

SEQ_LEN = 100


def packed(lengths, order=None, **kwargs):
    order = np.arange(len(lengths)) if order is None else np.array(order)
    return pack_rows(np.array(lengths, dtype=np.int64), order, SEQ_LEN, **kwargs)


@given(
    st.lists(st.integers(1, 2 * SEQ_LEN), min_size=1, max_size=80), st.integers(1, 8), st.randoms(use_true_random=False)
)
def test_every_sample_lies_once_whole_and_without_a_gap(lengths, num_open, random):
    order = list(range(len(lengths)))
    random.shuffle(order)
    packs = list(packed(lengths, order, num_open=num_open))
    assert sorted(piece.sample for pack in packs for piece in pack.pieces) == list(range(len(lengths)))
    for index, pack in enumerate(packs):
        assert pack.index == index
        row = 0
        for piece in pack.pieces:
            assert piece.start_row == row
            assert piece.num_tokens == min(lengths[piece.sample], SEQ_LEN)
            row += piece.num_tokens
        assert 0 < row <= SEQ_LEN


def test_a_sample_goes_into_the_first_open_row_that_fits():
    packs = packed([60, 70, 30, 40, 30], num_open=4)
    assert [[piece.sample for piece in pack.pieces] for pack in packs] == [[1, 4], [0, 2], [3]]


def test_the_fullest_row_is_closed_where_no_more_may_be_open():
    packs = packed([60, 70, 80, 40], num_open=2)
    assert [[piece.sample for piece in pack.pieces] for pack in packs] == [[1], [0, 3], [2]]


def test_a_full_row_is_closed_at_once():
    assert packed([50, 100, 50])[0].pieces == (Piece(1, 0, 100),)


def test_a_longer_sample_is_cut():
    assert packed([1000])[0].pieces == (Piece(0, 0, SEQ_LEN),)


def test_packs_before_are_counted_in_samples():
    packs = packed([50, 50, 100, 70])
    assert [packs.num_samples_before(i) for i in range(len(packs) + 1)] == [0, 2, 3, 4]


def test_a_pack_beyond_the_last_is_an_index_error():
    with pytest.raises(IndexError):
        packed([5])[1]


@pytest.mark.parametrize("lengths", [[], [5, 0]])
def test_nothing_to_pack_is_refused(lengths):
    with pytest.raises(DataError, match="prepare it again"):
        packed(lengths)


def test_time_grows_with_the_number_of_samples_only():
    lengths = np.random.default_rng(0).integers(10, SEQ_LEN, 200_000)
    order = np.arange(len(lengths))
    began = time.process_time()
    packs = pack_rows(lengths, order, SEQ_LEN)
    assert time.process_time() - began < 3
    assert lengths.sum() / (len(packs) * SEQ_LEN) > 0.93
