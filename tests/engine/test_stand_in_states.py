"""Hidden states of the stand-in: what a run with it relies on."""

import hashlib
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspark_train.engine.probe import check_hidden
from dspark_train.engine.stand_in_states import StandInStates, bfloat16_bits, prefix_rows, table

STATES = StandInStates((2, 5, 9, 12), 48)
IDS = st.lists(st.integers(0, 200_000), min_size=1, max_size=60)


@given(IDS, st.integers(1, 60))
def test_a_position_depends_on_the_tokens_up_to_it_only(ids, num_kept):
    whole, part = STATES.of(ids), STATES.of(ids[:num_kept])
    assert whole[:num_kept].tobytes() == part.tobytes()


@given(IDS, st.integers(0, 59), st.integers(1, 1000))
def test_every_earlier_token_is_felt(ids, place, step):
    place %= len(ids)
    others = [*ids[:place], ids[place] + step, *ids[place + 1 :]]
    rows, other_rows = prefix_rows(np.array(ids)), prefix_rows(np.array(others))
    assert (rows[:place] == other_rows[:place]).all()
    assert not np.array_equal(STATES.of(ids)[place], STATES.of(others)[place])


def test_the_same_tokens_give_the_same_bytes_in_another_process():
    code = (
        "import hashlib; from dspark_train.engine.stand_in_states import StandInStates\n"
        "print(hashlib.sha256(StandInStates((2, 5, 9, 12), 48).of(range(500)).tobytes()).hexdigest())"
    )
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert other.stdout.strip() == hashlib.sha256(STATES.of(range(500)).tobytes()).hexdigest()


@pytest.mark.parametrize("num_tokens", [2, 7, 500])
def test_they_pass_for_those_of_a_language_model(num_tokens):
    hidden = STATES.of(np.random.default_rng(num_tokens).integers(0, 49152, num_tokens).tolist())
    assert hidden.shape == (num_tokens, 4, 48)
    assert hidden.dtype == np.float32
    check_hidden(hidden)
    sizes = np.abs(hidden).mean(axis=(0, 2))
    assert ((sizes > 0.1) & (sizes < 100)).all()
    assert (np.diff(sizes) > 0).all()


def test_even_a_sample_of_one_token_again_and_again_has_states_that_differ():
    check_hidden(STATES.of([7] * 50))


def test_states_of_the_same_token_are_more_alike_than_of_others():
    ids = np.random.default_rng(0).integers(0, 49152, 400)
    ids[200:] = ids[:200]
    last = STATES.of(ids.tolist())[:, -1]
    alike = np.linalg.norm(last[100:200] - last[300:400], axis=1).mean()
    others = np.linalg.norm(last[100:200] - last[299:399], axis=1).mean()
    assert alike < others / 3


def test_a_table_is_centred_and_of_unit_variance():
    values = table(1, 500, 64)
    assert abs(values.mean()) < 0.02
    assert abs(values.var() - 1) < 0.05


@given(
    st.lists(
        st.floats(width=32, allow_nan=False, allow_infinity=False, min_value=-(2.0**99), max_value=2.0**99), min_size=1
    )
)
def test_bfloat16_is_the_nearest(values):
    exact = np.array(values, dtype=np.float32)
    bits = bfloat16_bits(exact)
    down = (exact.view(np.uint32) & 0xFFFF0000).view(np.float32)
    up = ((exact.view(np.uint32) & 0xFFFF0000) + np.uint32(0x10000)).view(np.float32)
    found = (bits.astype(np.uint32) << 16).view(np.float32)
    wide = exact.astype(np.float64)
    nearest = np.minimum(np.abs(down - wide), np.abs(up - wide))
    assert (np.abs(found - wide) == nearest).all()
