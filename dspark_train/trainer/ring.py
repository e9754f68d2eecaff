"""The ring of pack buffers: one registered allocation, read into by the store and trained from without a copy.

A slot holds one pack: hidden states [seq_len, layers, hidden] and token ids [seq_len]. It is *free*, *filling* (the
fetcher reads samples into it), *full*, or *in use* (the training thread reads it), in this order and no other: a
buffer reused before it was consumed once corrupted batches elsewhere without a sign. Slots are given out in the order
of the packs, so a validation round of any length passes through the same few buffers.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

import torch

from dspark_train.store.protocol import ALIGN_BYTES, TOKEN_ID_BYTES

PackKey = tuple[int, int]
"""Unit, and the pack's index within it."""


class SlotState(Enum):
    """Who may touch a slot: nobody, the fetcher, nobody until it is taken, the training thread."""

    FREE = "free"
    FILLING = "filling"
    FULL = "full"
    IN_USE = "in use"


@dataclass(frozen=True)
class PackShape:
    """What one pack buffer holds."""

    seq_len: int
    num_layers: int
    hidden_size: int
    dtype: torch.dtype

    @property
    def bytes_per_token(self) -> int:
        return self.num_layers * self.hidden_size * int(self.dtype.itemsize)

    @property
    def tokens_offset(self) -> int:
        """Where a slot's token ids begin, in bytes from the slot's start."""
        return _aligned(self.seq_len * self.bytes_per_token)

    @property
    def slot_bytes(self) -> int:
        return self.tokens_offset + _aligned(self.seq_len * TOKEN_ID_BYTES)


@dataclass(eq=False)
class Slot:
    """One pack buffer.

    hidden: [seq_len, layers, hidden]; token_ids: int64 [seq_len]; both are views of the ring's memory. offset: of the
    slot's hidden states in the ring, in bytes. failed: indices of pieces given up, masked in training.
    """

    index: int
    offset: int
    hidden: torch.Tensor
    token_ids: torch.Tensor
    state: SlotState = SlotState.FREE
    key: PackKey | None = None
    failed: frozenset[int] = field(default=frozenset())


class PackRing:
    """``num_slots`` pack buffers in one allocation (pinned where ``pinned``). Thread-safe; close it with the rank.

    The owner registers ``address`` and ``num_bytes`` with its store client.
    """

    def __init__(self, shape: PackShape, num_slots: int, pinned: bool = False) -> None:
        self.shape = shape
        self.num_bytes = num_slots * shape.slot_bytes
        # A multiple of the alignment more than needed, so that the first slot can start on one.
        raw = torch.zeros(self.num_bytes + ALIGN_BYTES, dtype=torch.uint8, pin_memory=pinned)
        start = -raw.data_ptr() % ALIGN_BYTES
        self._memory = raw[start : start + self.num_bytes]
        self._changed = threading.Condition()
        self._slots = [self._slot(index) for index in range(num_slots)]

    def _slot(self, index: int) -> Slot:
        shape = self.shape
        offset = index * shape.slot_bytes
        hidden = self._memory[offset : offset + shape.seq_len * shape.bytes_per_token]
        first_id = offset + shape.tokens_offset
        token_ids = self._memory[first_id : first_id + shape.seq_len * TOKEN_ID_BYTES]
        # ".data": else all slots count as one tensor changed in place, and autograd refuses a backward pass over one
        # slot because another was filled meanwhile.
        return Slot(
            index=index,
            offset=offset,
            hidden=hidden.view(shape.dtype).view(shape.seq_len, shape.num_layers, shape.hidden_size).data,
            token_ids=token_ids.view(torch.int64).data,
        )

    @property
    def address(self) -> int:
        return int(self._memory.data_ptr())

    @property
    def num_slots(self) -> int:
        return len(self._slots)

    def claim(self, key: PackKey) -> Slot | None:
        """A free slot for this pack, now *filling*; None where there is none."""
        with self._changed:
            slot = next((s for s in self._slots if s.state is SlotState.FREE), None)
            if slot is not None:
                self._move(slot, SlotState.FREE, SlotState.FILLING)
                slot.key, slot.failed = key, frozenset()
            return slot

    def seal(self, slot: Slot) -> None:
        """The slot holds its whole pack: *filling* becomes *full*."""
        with self._changed:
            self._move(slot, SlotState.FILLING, SlotState.FULL)

    def take(self, key: PackKey) -> Slot | None:
        """The slot of this pack, now *in use*; None while it is not full."""
        with self._changed:
            slot = next((s for s in self._slots if s.key == key and s.state is SlotState.FULL), None)
            if slot is not None:
                self._move(slot, SlotState.FULL, SlotState.IN_USE)
            return slot

    def release(self, slot: Slot) -> None:
        """Nothing reads the slot any more: *in use* becomes *free*."""
        with self._changed:
            self._move(slot, SlotState.IN_USE, SlotState.FREE)
            slot.key = None

    def clear(self) -> None:
        """Forget what was fetched but not trained. Only with no fetcher running and no slot in use."""
        with self._changed:
            assert all(slot.state is not SlotState.IN_USE for slot in self._slots), "a slot is in use"
            for slot in self._slots:
                slot.state, slot.key = SlotState.FREE, None
            self._changed.notify_all()

    def wait(self, ready: Callable[[], bool], timeout_s: float) -> bool:
        """Block until ``ready()`` after some change of the ring, or the time is over; returns what it said last."""
        deadline_s = time.monotonic() + timeout_s
        with self._changed:
            while not ready():
                left_s = deadline_s - time.monotonic()
                if left_s <= 0:
                    return False
                self._changed.wait(left_s)
        return True

    def wake(self) -> None:
        """Let every waiter look again."""
        with self._changed:
            self._changed.notify_all()

    def has_free(self) -> bool:
        return any(slot.state is SlotState.FREE for slot in self._slots)

    def _move(self, slot: Slot, old: SlotState, new: SlotState) -> None:
        assert slot.state is old, f"slot {slot.index} is {slot.state.value}, not {old.value}"
        slot.state = new
        self._changed.notify_all()


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // ALIGN_BYTES) * ALIGN_BYTES
