"""Hidden states that are a function of the token ids alone: what the stand-in puts where vLLM would run a model. Pure.

The same ids give the same bytes on every machine: only integer arithmetic, and additions and multiplications of single
floats in one order, are used. (Sines and matrix products differ in their last bits with the position in an array.)

There is something to learn in them. A state is a constant of its layer, as language models have, plus vectors of its
own token and of the last few; so what the last layer says of the next token is predictable from the layers below.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

NUM_ROWS = 1021
"""Vectors in each table; a token is known by two of them, so a million tokens differ."""
NUM_LAGS = 4
TOKEN_SEED, PAIR_SEED, PREFIX_SEED, LAYER_SEED = 11, 12, 13, 1000
PREFIX_WEIGHT = 0.125
LAYER_SHIFT, LAG_SHIFT = 17, 5
_SPREAD = np.uint64(0x9E3779B97F4A7C15)
_MIX = np.uint64(0xBF58476D1CE4E5B9)

Floats = npt.NDArray[np.float32]


def table(seed: int, num_rows: int, width: int) -> Floats:
    """Vectors [num_rows, width] whose values have a bell-like shape around 0 and a variance of about 1."""
    # The raw stream of a bit generator is fixed for good, what numpy's distributions make of it is not.
    raw = np.random.PCG64(seed).random_raw(num_rows * width).reshape(num_rows, width)
    parts = [(raw >> np.uint64(shift)) & np.uint64(0xFFFF) for shift in (0, 16, 32, 48)]
    total: Floats = (parts[0] + parts[1] + parts[2] + parts[3]).astype(np.float32)
    total -= np.float32(2 * 0xFFFF)
    total *= np.float32(1 / 37836.0)
    return total


def prefix_rows(token_ids: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """A row for each position that depends on every token up to it."""
    places = np.arange(1, len(token_ids) + 1, dtype=np.uint64)
    mixed = (token_ids.astype(np.uint64) + _SPREAD * places) * _MIX
    mixed ^= mixed >> np.uint64(31)
    return ((np.cumsum(mixed * _SPREAD, dtype=np.uint64) >> np.uint64(20)) % np.uint64(NUM_ROWS)).astype(np.int64)


def bfloat16_bits(values: Floats) -> npt.NDArray[np.uint16]:
    """Finite float32 as bfloat16, rounded to the nearest, even where two are as near."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


@dataclass(frozen=True)
class StandInStates:
    """Hidden states of a model that does not exist. layer_ids: those stored, in order; all different."""

    layer_ids: Sequence[int]
    width: int
    _tokens: Floats = field(init=False, repr=False)
    _pairs: Floats = field(init=False, repr=False)
    _prefixes: Floats = field(init=False, repr=False)
    _constants: Floats = field(init=False, repr=False)

    def __post_init__(self) -> None:
        constants = np.concatenate([table(LAYER_SEED + layer, 1, self.width) for layer in self.layer_ids])
        for name, seed in (("_tokens", TOKEN_SEED), ("_pairs", PAIR_SEED), ("_prefixes", PREFIX_SEED)):
            object.__setattr__(self, name, table(seed, NUM_ROWS, self.width))
        object.__setattr__(self, "_constants", constants)

    def of(self, token_ids: Sequence[int]) -> Floats:
        """float32 [tokens, layers, width]; position i depends on ``token_ids[: i + 1]``, the values on nothing else."""
        ids = np.asarray(token_ids, dtype=np.int64)
        own = self._tokens[ids % NUM_ROWS] + self._pairs[ids // NUM_ROWS % NUM_ROWS]
        prefix = self._prefixes[prefix_rows(ids)] * np.float32(PREFIX_WEIGHT)
        states = np.empty((len(ids), len(self.layer_ids), self.width), dtype=np.float32)
        for index, layer in enumerate(self.layer_ids):
            layer_states = np.roll(own, LAYER_SHIFT * layer, axis=1) + prefix
            for lag in range(1, NUM_LAGS + 1):
                earlier = np.roll(own[:-lag], LAYER_SHIFT * layer + LAG_SHIFT * lag, axis=1)
                layer_states[lag:] += earlier * np.float32(0.5**lag)
            # Norms grow with depth in a language model, from about the square root of the width.
            states[:, index] = (layer_states + self._constants[index]) * np.float32(0.5 + 0.125 * layer)
        return states
