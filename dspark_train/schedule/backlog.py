"""What is to be leased next: planned slots in schedule order, as long as their segment has room. Pure.

Every segment has its own queue and its own bytes. A segment whose next sample does not fit is set aside until bytes are
freed, so that the others go on; within a segment nothing overtakes, so the unit in training always gets room first.
Each operation is O(log n).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from heapq import heappop, heappush

from dspark_train.schedule.slot import Slot


class Backlog:
    """Queues of planned slots by home segment, and the bytes that leases, ready and taken samples hold there."""

    def __init__(self, marks_bytes: Mapping[str, int], leaving: Collection[str] = ()) -> None:
        """marks_bytes: what may be held in each segment; leaving: segments that later units put nothing into."""
        self.marks_bytes = dict(marks_bytes)
        self._leaving = frozenset(leaving)
        self._held = dict.fromkeys(marks_bytes, 0)
        self._queues: dict[str, list[tuple[int, int, Slot]]] = {segment: [] for segment in marks_bytes}
        self._heads: list[tuple[int, int, str]] = []
        self._listed: dict[str, tuple[int, int] | None] = dict.fromkeys(marks_bytes)

    @property
    def held_bytes(self) -> int:
        """Bytes held in all segments together."""
        return sum(self._held.values())

    @property
    def is_full(self) -> bool:
        """Whether every segment's next sample waits for room, so that further samples could not be leased either."""
        staying = self._queues.keys() - self._leaving
        return all(self._listed[segment] is None and self._queues[segment] for segment in staying)

    def push(self, slot: Slot) -> None:
        """Queue a planned slot."""
        heappush(self._queues[slot.home], (slot.unit, slot.index, slot))
        self._list(slot.home)

    def peek(self) -> Slot | None:
        """The first slot in schedule order whose segment has room; stays queued."""
        while self._heads:
            unit, index, segment = self._heads[0]
            if self._listed.get(segment) == (unit, index):
                slot = self._queues[segment][0][2]
                if self._held[segment] + slot.num_bytes <= self.marks_bytes[segment]:
                    return slot
                self._listed[segment] = None
            heappop(self._heads)
        return None

    def pop(self, slot: Slot) -> None:
        """Take out the slot that :meth:`peek` returned; its bytes are held from now on."""
        heappop(self._queues[slot.home])
        self._held[slot.home] += slot.num_bytes
        self._list(slot.home)

    def hold(self, slot: Slot) -> None:
        """Count the bytes of a slot that was never queued here."""
        self._held[slot.home] += slot.num_bytes

    def free(self, slot: Slot) -> None:
        """The slot's object is gone, or never came: its room is free again."""
        self._held[slot.home] -= slot.num_bytes
        self._list(slot.home)

    def drop_leaving(self) -> None:
        """Forget the leaving segments: nothing is held or queued there any more."""
        for segment in self._leaving:
            is_empty = self._held[segment] == 0 and not self._queues[segment]
            assert is_empty, f"{segment} is not empty"
            for table in (self.marks_bytes, self._held, self._queues, self._listed):
                del table[segment]
        self._leaving = frozenset()

    def _list(self, segment: str) -> None:
        """Make the head of a segment's queue a candidate; an entry listed for an earlier head is thereby stale."""
        queue = self._queues[segment]
        head = queue[0][:2] if queue else None
        if head != self._listed[segment]:
            self._listed[segment] = head
            if head is not None:
                heappush(self._heads, (*head, segment))
