"""Fill rows of `seq_len` tokens with whole samples. Pure, and the same on every platform.

First fit over the shuffled order, with a bounded number of rows open: each sample looks at no more than `num_open`
rows, so the time is linear in the samples (1-3 s a million on one core), where a first fit over all rows is quadratic.
Measured with 32 open: 99 % full with log-normal lengths around 1,100 in rows of 8192, 94 % with uniform ones of 50-512
in rows of 512. Where none fits, the fullest row is closed, which fills 1-2 % better than closing the oldest.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from dspark_train.errors import DataError, Problem
from dspark_train.schedule.unit import Pack, Piece

NUM_OPEN = 32


class PackedRows(Sequence[Pack]):
    """The packs of one epoch in order, as two arrays; a pack is made when asked for (a million samples: 20 MB)."""

    def __init__(self, epoch: int, samples: NDArray[np.int64], sizes: NDArray[np.int64], starts: NDArray[np.int64]):
        """samples, sizes: the pieces of all packs, in order; pack i has pieces starts[i] .. starts[i + 1]."""
        self.epoch = epoch
        self._samples, self._sizes, self._starts = samples, sizes, starts

    def __len__(self) -> int:
        return len(self._starts) - 1

    def __getitem__(self, index: int) -> Pack:  # type: ignore[override]  # packs are asked for one at a time
        """Pack ``index``. Raises IndexError."""
        if not 0 <= index < len(self):
            raise IndexError(index)
        first, last = int(self._starts[index]), int(self._starts[index + 1])
        pieces, row = [], 0
        for sample, size in zip(self._samples[first:last].tolist(), self._sizes[first:last].tolist(), strict=True):
            pieces.append(Piece(sample, row, size))
            row += size
        return Pack(index, self.epoch, tuple(pieces))

    def num_samples_before(self, index: int) -> int:
        """Samples in the packs before ``index`` (which may be the number of packs)."""
        return int(self._starts[index])


def pack_rows(
    lengths_tokens: NDArray[np.int64],
    order: NDArray[np.int64],
    seq_len: int,
    *,
    num_open: int = NUM_OPEN,
    epoch: int = 0,
) -> PackedRows:
    """Fill rows of ``seq_len`` tokens, first fit over the shuffled order.

    lengths_tokens: one a row of the data set; order: the rows to pack. A longer sample is cut to ``seq_len``. Packs
    come in the order in which they are closed: when full, when the fullest of too many, and the rest oldest first.
    Raises DataError if there is nothing to pack, or a sample without tokens.
    """
    sizes = np.minimum(lengths_tokens[order], seq_len)
    if not len(sizes) or sizes.min() < 1:
        what = f"sample {int(order[sizes.argmin()])} has no tokens" if len(sizes) else "there is no sample to train on"
        raise DataError(
            [Problem("the data set", 0, "", what, "prepare it again, and read what `prepare` skips and why")]
        )
    rows = _first_fit(sizes.tolist(), seq_len, num_open)
    starts = np.cumsum([0, *map(len, rows)])
    positions = np.fromiter((position for row in rows for position in row), np.int64, len(sizes))
    return PackedRows(epoch, order[positions], sizes[positions], starts)


def _first_fit(sizes: Iterable[int], seq_len: int, num_open: int) -> list[list[int]]:
    """Positions of the samples in each row, rows in the order in which they were closed."""
    rooms: list[int] = []
    rows: list[list[int]] = []
    closed: list[list[int]] = []
    for position, size in enumerate(sizes):
        for place, room in enumerate(rooms):  # noqa: B007 - both are read after the loop
            if room >= size:
                break
        else:
            if len(rooms) == num_open:
                fullest = rooms.index(min(rooms))
                closed.append(rows.pop(fullest))
                rooms.pop(fullest)
            place, room = len(rooms), seq_len
            rooms.append(room)
            rows.append([])
        rows[place].append(position)
        if room == size:
            closed.append(rows.pop(place))
            rooms.pop(place)
        else:
            rooms[place] = room - size
    return closed + rows
