"""The largest magnitude of each row, as integers, says what the numbers themselves say."""

import ctypes

import pytest
import torch

from dspark_train.trainer import peaks

pytestmark = pytest.mark.torch
DTYPES = list(peaks.FORMATS)
SHAPE = (7, 3, 33)


def rows(dtype):
    """Numbers of every exponent, of both signs, and both zeros."""
    exponents = torch.linspace(-40, 15, SHAPE[0] * SHAPE[1] * SHAPE[2])
    numbers = torch.randn(SHAPE, generator=torch.Generator().manual_seed(1)) * (2**exponents).view(SHAPE)
    numbers[0, 0, :2] = torch.tensor([0.0, -0.0])
    return numbers.to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_peaks_are_the_bits_of_the_largest_absolute_value(dtype):
    numbers = rows(dtype)
    found = torch.from_numpy(peaks.peaks_of(numbers)).view(dtype)
    assert found.shape == SHAPE[:2]
    assert torch.equal(found, numbers.abs().amax(-1))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("value", [float("nan"), -float("nan"), float("inf"), -float("inf")])
def test_a_row_with_a_value_that_is_not_finite_is_told_from_the_largest_finite_one(dtype, value):
    numbers = rows(dtype)
    numbers[2, 1, 5] = torch.finfo(dtype).max
    numbers[3, 1, 5] = torch.finfo(dtype).min
    numbers[4, 2, 5] = value
    expected = torch.ones(SHAPE[:2], dtype=torch.bool)
    expected[4, 2] = False
    assert (peaks.are_finite(peaks.peaks_of(numbers), dtype) == expected.numpy()).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_zeros_of_either_sign_have_a_peak_of_zero_and_the_smallest_number_has_not(dtype):
    numbers = torch.tensor([[0.0, -0.0], [0.0, torch.finfo(dtype).smallest_normal]], dtype=dtype)
    assert (peaks.peaks_of(numbers) == 0).tolist() == [True, False]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shift", [0, 1])
def test_a_copy_brings_every_byte_and_the_same_peaks_from_any_address(dtype, shift):
    source, target = rows(dtype), torch.zeros(SHAPE, dtype=dtype)
    memory = ctypes.create_string_buffer(source.nbytes + shift)
    ctypes.memmove(ctypes.addressof(memory) + shift, source.data_ptr(), source.nbytes)
    found = peaks.copy(target, ctypes.addressof(memory) + shift)
    assert torch.equal(target, source)
    assert (found == peaks.peaks_of(source)).all()


def test_rows_of_a_slice_are_filled_and_nothing_beside_them():
    target, source = torch.zeros(9, 4), torch.ones(2, 4)
    peaks.copy(target[3:5], source.data_ptr())
    assert target.sum(-1).tolist() == [0, 0, 0, 4, 4, 0, 0, 0, 0]
