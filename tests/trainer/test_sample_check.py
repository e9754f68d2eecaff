"""What must not be trained on: every kind of damage that engines and stores were seen to do."""

import numpy as np
import pytest
import torch

from dspark_train.trainer.sample_check import what_is_wrong

pytestmark = pytest.mark.torch
NUM_TOKENS, NUM_LAYERS, HIDDEN = 20, 3, 48
IDS = np.arange(NUM_TOKENS)


def hidden(dtype=torch.float32):
    return torch.randn(NUM_TOKENS, NUM_LAYERS, HIDDEN, generator=torch.Generator().manual_seed(1)).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_good_sample_has_nothing_wrong(dtype):
    assert what_is_wrong(hidden(dtype), IDS, IDS) == ""


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_one_value_that_is_not_finite_is_found_and_its_layer_named(dtype, value):
    states = hidden(dtype)
    states[13, 1, 7] = value
    assert what_is_wrong(states, IDS, IDS) == "hidden states are not finite in stored layers 1"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_same_row_for_every_token_is_found(dtype):
    states = hidden(dtype)
    states[:, 2] = states[0, 2].clone()
    assert what_is_wrong(states, IDS, IDS) == "hidden states are constant in stored layers 2"


def test_all_zeros_are_found():
    assert "constant" in what_is_wrong(torch.zeros(NUM_TOKENS, NUM_LAYERS, HIDDEN), IDS, IDS)


def test_a_block_of_zero_rows_amid_good_ones_is_found():
    states = hidden()
    states[4:8, 0] = 0
    assert what_is_wrong(states, IDS, IDS) == "hidden states of 4 tokens are zero in stored layers 0"


def test_rows_of_which_merely_the_largest_values_are_alike_are_good():
    states = hidden()
    states[:, 1] = states[:, 1].clamp(-2, 2)
    states[:, 1, 0] = -2
    assert (states[:, 1].abs().amax(-1) == 2).all()
    assert what_is_wrong(states, IDS, IDS) == ""


def test_values_whose_sum_overflows_are_good():
    states = hidden()
    states[3, 0] = 3e38
    states[3, 0, 0] = 2e38
    assert what_is_wrong(states, IDS, IDS) == ""


def test_another_token_or_length_is_named_by_its_place():
    other = IDS.copy()
    other[5] = 99
    assert what_is_wrong(hidden(), other, IDS) == "token ids differ from the data set's from token 5 on"
    assert "token ids differ" in what_is_wrong(hidden(), IDS, IDS[:-1])


def test_a_sample_of_one_token_is_judged_by_its_columns():
    assert what_is_wrong(hidden()[:1], IDS[:1], IDS[:1]) == ""
    assert "constant" in what_is_wrong(torch.ones(1, NUM_LAYERS, HIDDEN), IDS[:1], IDS[:1])
