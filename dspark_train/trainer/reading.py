"""Reads samples from the store straight to their rows, and checks them: several batches at a time.

What lies in the rank's own segment is checked while it is copied, in one pass. Memory serves two cores better than one,
so with a second core at hand, reading with its checks is faster than one thread's plain copy. Nothing is trusted, or
told, before its batch is taken in.
"""

from __future__ import annotations

import queue
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from dspark_train.schedule.messages import TakenSample
from dspark_train.store.protocol import TOKEN_ID_BYTES, Range, SampleLayout, StoreClient, plain_copy
from dspark_train.trainer.in_hand import UnitInHand
from dspark_train.trainer.packs import TokenRows
from dspark_train.trainer.peaks import Bits, copy
from dspark_train.trainer.ring import PackRing, PackShape
from dspark_train.trainer.sample_check import what_is_wrong

NUM_THREADS = 4
"""Two copy as fast as memory goes; others ask the master meanwhile where their samples lie."""
NUM_RANGES, HIDDEN_RANGE = 2, 0
"""Of a sample: hidden states and token ids."""


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

        def copy_range(place: int, target: int, source: int, num_bytes: int) -> None:
            if place % NUM_RANGES == HIDDEN_RANGE:
                readings[place // NUM_RANGES].copy_hidden(source)
            else:
                plain_copy(place, target, source, num_bytes)

        told = self._store.read(self._ring.address, [part for each in readings for part in each.ranges], copy_range)
        for place, reason in enumerate(told):
            reading = readings[place // NUM_RANGES]
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
        self._piece, slot = unit.unit.packs[sample.pack].pieces[sample.piece], unit.slots[sample.pack]
        start, num_tokens = self._piece.start_row, self._piece.num_tokens
        self._hidden, self._ids = (part[start : start + num_tokens] for part in (slot.hidden, slot.token_ids))
        self._peaks: Bits | None = None
        layout = SampleLayout(num_tokens, shape.bytes_per_token)
        first_row = slot.offset + start * shape.bytes_per_token
        first_id = slot.offset + shape.tokens_offset + start * TOKEN_ID_BYTES
        self.ranges = (
            Range(sample.key, 0, first_row, layout.hidden_bytes),
            Range(sample.key, layout.tokens_offset, first_id, layout.tokens_bytes),
        )
        """From where in the object to where in the ring: NUM_RANGES, the one of HIDDEN_RANGE the hidden states."""

    def copy_hidden(self, source: int) -> None:
        """They stand at this address of this process's memory."""
        self._peaks = copy(self._hidden, source)

    def what_is_wrong(self, tokens: TokenRows) -> str:
        """Once all of it is here."""
        expected = tokens.token_ids(self._piece.sample)[: self._piece.num_tokens]
        return what_is_wrong(self._hidden, self._ids.numpy(), expected, self._peaks)
