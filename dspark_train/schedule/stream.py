"""The endless stream of packs: epoch after epoch, each in its own order. Pure.

An epoch is shuffled and packed when first asked for, and only the last few are kept. How many packs each had is
remembered, for ever: shuffles pack differently, so where an epoch begins is known only from those before it.
"""

from __future__ import annotations

from bisect import bisect_right

import numpy as np
from numpy.typing import NDArray

from dspark_train.schedule.packing import PackedRows, pack_rows
from dspark_train.schedule.shuffle import permutation
from dspark_train.schedule.unit import Pack

EPOCHS_KEPT = 4
"""The ledger reads an epoch ahead of the ranks; a step of a tiny data set spans several."""


class PackStream:
    """Packs of the training samples, numbered from 0 through all epochs."""

    def __init__(self, lengths_tokens: NDArray[np.int64], samples: NDArray[np.int64], seq_len: int, seed: int) -> None:
        """lengths_tokens: one a row of the data set; samples: the rows to train on."""
        self.num_samples = len(samples)
        """Samples of one epoch."""
        self._lengths, self._samples, self._seq_len, self._seed = lengths_tokens, samples, seq_len, seed
        self._starts = [0]
        self._kept: dict[int, PackedRows] = {}

    def pack(self, position: int) -> Pack:
        """The pack at ``position`` of the stream."""
        epoch = self.epoch_at(position)
        return self._rows(epoch)[position - self._starts[epoch]]

    def epoch_at(self, position: int) -> int:
        """The epoch, from 0, that the pack at ``position`` belongs to."""
        while self._starts[-1] <= position:
            self._rows(len(self._starts) - 1)
        return bisect_right(self._starts, position) - 1

    def start_of(self, epoch: int) -> int:
        """Position of the first pack of ``epoch``; packs every epoch before it once."""
        while len(self._starts) <= epoch:
            self._rows(len(self._starts) - 1)
        return self._starts[epoch]

    def num_samples_before(self, position: int) -> int:
        """Samples in all packs before ``position``."""
        if position == 0:
            return 0
        epoch = self.epoch_at(position - 1)
        return epoch * self.num_samples + self._rows(epoch).num_samples_before(position - self._starts[epoch])

    def _rows(self, epoch: int) -> PackedRows:
        rows = self._kept.pop(epoch, None)
        if rows is None:
            order = self._samples[permutation(self._seed, epoch, self.num_samples)]
            rows = pack_rows(self._lengths, order, self._seq_len, epoch=epoch)
            if epoch == len(self._starts) - 1:
                self._starts.append(self._starts[-1] + len(rows))
        self._kept[epoch] = rows
        if len(self._kept) > EPOCHS_KEPT:
            self._kept.pop(next(iter(self._kept)))
        return rows
