"""Seeded orders that are the same for ever: on every platform, in every numpy version. Pure.

numpy's own generators may change their streams between versions; a run resumed after an upgrade would then train other
steps. So keys are made by splitmix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014;
constants of Vigna's public-domain splitmix64.c), of which only wrapping uint64 arithmetic is asked, and sorted stably.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

MASK = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15
_MIX_1, _MIX_2 = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
SPLIT_STREAM = 0
"""The stream of keys that holds samples out for validation; epoch e is shuffled by stream e + 1."""


def shuffle_keys(seed: int, stream: int, num: int) -> NDArray[np.uint64]:
    """The first ``num`` outputs of splitmix64, started from a hash of seed and stream: uint64 [num]."""
    start = _mix((_mix((seed + GOLDEN) & MASK) ^ stream) + GOLDEN & MASK)
    with np.errstate(over="ignore"):
        state = np.arange(1, num + 1, dtype=np.uint64) * np.uint64(GOLDEN) + np.uint64(start)
        state = (state ^ (state >> np.uint64(30))) * np.uint64(_MIX_1)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(_MIX_2)
    return state ^ (state >> np.uint64(31))


def permutation(seed: int, epoch: int, num: int) -> NDArray[np.int64]:
    """The order of ``num`` things in an epoch: int64 [num], each index once."""
    return np.argsort(shuffle_keys(seed, epoch + 1, num), kind="stable").astype(np.int64)


def split_rows(seed: int, num: int, validation_frac: float) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Split indices 0 .. num - 1 into (train, validation): train ascending, validation shuffled, so that a part of it
    stands for the whole.

    The rounded share is held out, but always at least one is trained on; and where anything is to be held out and
    there are two or more, at least one is.
    """
    num_held = round(validation_frac * num)
    if validation_frac > 0:
        num_held = max(num_held, 1)
    num_held = max(0, min(num_held, num - 1))
    order = np.argsort(shuffle_keys(seed, SPLIT_STREAM, num), kind="stable").astype(np.int64)
    return np.sort(order[num_held:]), order[:num_held]


def _mix(value: int) -> int:
    value = (value ^ (value >> 30)) * _MIX_1 & MASK
    value = (value ^ (value >> 27)) * _MIX_2 & MASK
    return value ^ (value >> 31)
