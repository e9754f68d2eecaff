"""The objects that both sides of the ingest comparison read: how many, how large, and their bytes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dspark_train.engine.stand_in_states import bfloat16_bits
from dspark_train.store.protocol import SampleLayout

BASE_VALUES = 3 * 2**20 + 1
"""Drawn once and repeated: not a multiple of a row, so that no two rows of a sample are alike."""
VALUE_BYTES = 2


@dataclass(frozen=True)
class Objects:
    """Samples of a large target in bfloat16: ``num_packs`` packs, each of samples of ``piece_tokens``."""

    num_packs: int = 4
    piece_tokens: tuple[int, ...] = (2048, 1365, 683)
    num_layers: int = 4
    hidden_size: int = 4096

    @property
    def seq_len(self) -> int:
        return sum(self.piece_tokens)

    @property
    def num_samples(self) -> int:
        return self.num_packs * len(self.piece_tokens)

    @property
    def bytes_per_token(self) -> int:
        return self.num_layers * self.hidden_size * VALUE_BYTES

    @property
    def pack_bytes(self) -> int:
        """Hidden states and token ids of one pack."""
        return sum(self.layout(sample).total_bytes for sample in range(len(self.piece_tokens)))

    @property
    def total_bytes(self) -> int:
        return self.num_packs * self.pack_bytes

    def num_tokens(self, sample: int) -> int:
        return self.piece_tokens[sample % len(self.piece_tokens)]

    def layout(self, sample: int) -> SampleLayout:
        return SampleLayout(self.num_tokens(sample), self.bytes_per_token)

    def token_ids(self, sample: int) -> npt.NDArray[np.int64]:
        """The first id is the sample's number, so that a reader knows which one it has."""
        ids: npt.NDArray[np.int64] = np.random.default_rng(sample).integers(0, 100_000, self.num_tokens(sample))
        ids[0] = sample
        return ids

    def fill(self, sample: int, target: npt.NDArray[np.uint8]) -> int:
        """Write a sample's object to the beginning of ``target``; returns its size."""
        layout = self.layout(sample)
        base = np.roll(_base(), 4099 * sample)
        target[: layout.hidden_bytes].view(np.uint16)[:] = np.resize(base, layout.hidden_bytes // VALUE_BYTES)
        target[layout.tokens_offset :][: layout.tokens_bytes] = self.token_ids(sample).view(np.uint8)
        return layout.total_bytes


def _base() -> npt.NDArray[np.uint16]:
    return bfloat16_bits(np.random.default_rng(0).standard_normal(BASE_VALUES, dtype=np.float32))
