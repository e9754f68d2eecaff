"""Reads samples from the store straight to their rows, and checks them: several batches at a time.

The check is one pass over all that was read, which from memory would cost as much as half a copy: so each part of a
sample is summed up while its bytes are still in the processor's cache. Memory serves two cores better than one, so with
a second core at hand, reading with its checks comes near one thread's plain copy. Nothing is trusted, or told, before
its batch is taken in.
"""

from __future__ import annotations

import queue
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch

from dspark_train.schedule.messages import TakenSample
from dspark_train.store.protocol import TOKEN_ID_BYTES, Range, SampleLayout, StoreClient
from dspark_train.trainer.in_hand import UnitInHand
from dspark_train.trainer.packs import TokenRows
from dspark_train.trainer.ring import PackRing, PackShape
from dspark_train.trainer.sample_check import what_is_wrong

NUM_THREADS = 4
"""Two copy as fast as memory goes; others ask the master meanwhile where their samples lie."""
_TOKEN_IDS = slice(-1, 0)
PART_BYTES = 4 << 20
"""Of a sample's hidden states, read before they are summed up: fits into the last cache, and is large enough that the
calls it takes do not count."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Samples read in one call. reasons: one a sample, "" where it is fit to train on.

    are_unread: one a sample, whether it was not there to check. error: why nothing was read at all, the store having
    failed as a whole, or what ended the reading.
    """

    unit: UnitInHand
    samples: Sequence[TakenSample]
    reasons: Sequence[str] = ()
    are_unread: Sequence[bool] = ()
    error: BaseException | None = None


class SampleReader:
    """For one thread, which begins batches and takes them in again. Close it with :meth:`close`."""

    def __init__(self, store: StoreClient, ring: PackRing, tokens: TokenRows) -> None:
        self._store, self._ring, self._tokens = store, ring, tokens
        self._threads = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="read")
        self._ended: queue.SimpleQueue[Batch] = queue.SimpleQueue()
        self._num_open = 0

    @property
    def is_idle(self) -> bool:
        """Whether no batch is to be taken in."""
        return self._num_open == 0

    @property
    def has_room(self) -> bool:
        """Whether a batch begun now would be read now."""
        return self._num_open < NUM_THREADS

    def begin(self, unit: UnitInHand, samples: Sequence[TakenSample]) -> None:
        """Read these to their places, in one call, and check them."""
        self._num_open += 1
        self._threads.submit(lambda: self._ended.put(self._done(unit, samples)))

    def take(self, timeout_s: float) -> Batch | None:
        """A batch that has ended; None where none has within ``timeout_s``, or none is open."""
        if self.is_idle:
            return None
        try:
            batch = self._ended.get(timeout_s > 0, timeout_s or None)
        except queue.Empty:
            return None
        self._num_open -= 1
        return batch

    def read(self, unit: UnitInHand, samples: Sequence[TakenSample]) -> Batch:
        """Read and check these here and now. Raises StoreError where the store does not answer at all."""
        readings = [_Reading(unit, sample, self._ring.shape) for sample in samples]
        parts = [(reading, rows) for reading in readings for rows in reading.parts]

        def seen(place: int) -> None:
            reading, rows = parts[place]
            reading.add_up(rows)

        told = self._store.read(self._ring.address, [reading.range_of(rows) for reading, rows in parts], seen)
        for (reading, _), reason in zip(parts, told, strict=True):
            reading.unread = reading.unread or reason
        reasons = [reading.unread or reading.what_is_wrong(self._tokens) for reading in readings]
        return Batch(unit, samples, reasons, [bool(reading.unread) for reading in readings])

    def close(self) -> None:
        """Wait until no slot is touched any more."""
        self._threads.shutdown(cancel_futures=True)

    def _done(self, unit: UnitInHand, samples: Sequence[TakenSample]) -> Batch:
        try:
            return self.read(unit, samples)
        except BaseException as error:  # noqa: BLE001 - raised or waited out where the batch is taken in
            return Batch(unit, samples, error=error)


class _Reading:
    """One sample being read. unread: why not all of it was."""

    def __init__(self, unit: UnitInHand, sample: TakenSample, shape: PackShape) -> None:
        self.unread = ""
        self._key, self._shape = sample.key, shape
        self._piece, self._slot = unit.unit.packs[sample.pack].pieces[sample.piece], unit.slots[sample.pack]
        rows = slice(self._piece.start_row, self._piece.start_row + self._piece.num_tokens)
        self._hidden, self._ids = self._slot.hidden[rows], self._slot.token_ids[rows]
        self._sums = torch.empty(self._hidden.shape[:2], dtype=self._hidden.dtype)
        step = max(1, PART_BYTES // shape.bytes_per_token)
        ends = range(step, self._piece.num_tokens + step, step)
        self.parts = [slice(end - step, min(end, self._piece.num_tokens)) for end in ends] + [_TOKEN_IDS]
        """Rows of the sample, and its token ids."""

    def range_of(self, rows: slice) -> Range:
        """From where in the object to where in the ring."""
        shape, layout = self._shape, SampleLayout(self._piece.num_tokens, self._shape.bytes_per_token)
        if rows is _TOKEN_IDS:
            first_id = self._slot.offset + shape.tokens_offset + self._piece.start_row * TOKEN_ID_BYTES
            return Range(self._key, layout.tokens_offset, first_id, layout.tokens_bytes)
        first_row = self._slot.offset + (self._piece.start_row + rows.start) * shape.bytes_per_token
        num_bytes = (rows.stop - rows.start) * shape.bytes_per_token
        return Range(self._key, rows.start * shape.bytes_per_token, first_row, num_bytes)

    def add_up(self, rows: slice) -> None:
        """These rows are here."""
        if rows is not _TOKEN_IDS:
            torch.sum(self._hidden[rows], -1, out=self._sums[rows])

    def what_is_wrong(self, tokens: TokenRows) -> str:
        """Once all of it is here."""
        expected = tokens.token_ids(self._piece.sample)[: self._piece.num_tokens]
        return what_is_wrong(self._hidden, self._ids.numpy(), expected, self._sums)
