"""The largest magnitude of every row of hidden states, found while the rows are copied or once they are there.

A magnitude is a number's bits without its sign, as an unsigned integer: among floating-point numbers of one format it
grows as the absolute value does, infinity lies above every finite one, and NaN above infinity (IEEE 754). So one pass
with nothing but integers shows whether a row is finite, and whether it is zero.

The loops are compiled (numba), hold no lock of Python's, and touch every byte once. A copy with them costs what memmove
does, where copying and then adding up by torch costs half as much again.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

Bits = npt.NDArray[np.unsignedinteger[Any]]
_compiling = Lock()


@dataclass(frozen=True, slots=True)
class Format:
    """How numbers stand in memory. bits: an unsigned type of their size; infinity: its magnitude."""

    bits: type[np.unsignedinteger[Any]]
    torch_bits: torch.dtype
    magnitude: int
    infinity: int


FORMATS = {
    torch.bfloat16: Format(np.uint16, torch.uint16, 0x7FFF, 0x7F80),
    torch.float16: Format(np.uint16, torch.uint16, 0x7FFF, 0x7C00),
    torch.float32: Format(np.uint32, torch.uint32, 0x7FFF_FFFF, 0x7F80_0000),
}


def peaks_of(rows: torch.Tensor) -> Bits:
    """The largest magnitude of each row. rows: [..., width], in one piece; returns [...]."""
    bits, magnitude = _bits(rows)
    peaks = np.empty(len(bits), bits.dtype)
    _loops().find(bits, magnitude, peaks)
    return peaks.reshape(rows.shape[:-1])


def copy(rows: torch.Tensor, source: int) -> Bits:
    """Fill ``rows`` with what stands at the address ``source``; returns the largest magnitude of each.

    rows: [..., width], in one piece; returns [...].
    """
    bits, magnitude = _bits(rows)
    if source % bits.itemsize:  # no store puts it so; numpy would, and compiled anew for it
        ctypes.memmove(bits.ctypes.data, source, bits.nbytes)
        return peaks_of(rows)
    memory = (ctypes.c_uint8 * bits.nbytes).from_address(source)
    peaks = np.empty(len(bits), bits.dtype)
    _loops().copy(bits, np.ndarray(bits.shape, bits.dtype, memoryview(memory)), magnitude, peaks)
    return peaks.reshape(rows.shape[:-1])


def are_finite(peaks: Bits, dtype: torch.dtype) -> npt.NDArray[np.bool_]:
    """Which rows have no infinity and no NaN, by their peaks. dtype: of the rows."""
    return peaks < FORMATS[dtype].infinity


def prepare(dtype: torch.dtype) -> None:
    """Compile for rows of this type, two seconds the first time: else the first sample would wait for it."""
    rows = torch.ones(1, 1, dtype=dtype)
    copy(rows.clone(), rows.data_ptr())
    peaks_of(rows)


def _bits(rows: torch.Tensor) -> tuple[Bits, np.unsignedinteger[Any]]:
    """The same memory as [rows, width] of unsigned integers, and the bits of a magnitude."""
    own = FORMATS[rows.dtype]
    return rows.view(own.torch_bits).view(-1, rows.shape[-1]).numpy(), own.bits(own.magnitude)


@dataclass(frozen=True, slots=True)
class _Loops:
    """Compiled for each type when first called with it."""

    copy: Callable[[Bits, Bits, np.unsignedinteger[Any], Bits], None]
    find: Callable[[Bits, np.unsignedinteger[Any], Bits], None]


@lru_cache
def _loops() -> _Loops:
    with _compiling:
        import numba  # takes a second, which `prepare` spends beside other work

        # Kept on disk for other processes where there is a place for it: beside this file or in the user's cache.
        try:
            return _Loops(*(numba.njit(nogil=True, cache=True)(loop) for loop in (_copy, _find)))
        except RuntimeError:
            return _Loops(*(numba.njit(nogil=True)(loop) for loop in (_copy, _find)))


def _copy(target: Bits, source: Bits, magnitude: np.unsignedinteger[Any], peaks: Bits) -> None:
    for row in range(target.shape[0]):
        peak = magnitude & ~magnitude
        for column in range(target.shape[1]):
            bits = source[row, column]
            target[row, column] = bits
            peak = max(peak, bits & magnitude)
        peaks[row] = peak


def _find(rows: Bits, magnitude: np.unsignedinteger[Any], peaks: Bits) -> None:
    for row in range(rows.shape[0]):
        peak = magnitude & ~magnitude
        for column in range(rows.shape[1]):
            peak = max(peak, rows[row, column] & magnitude)
        peaks[row] = peak
