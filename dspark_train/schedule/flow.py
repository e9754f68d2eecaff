"""The way of single samples: planned, leased, ready, taken, trained, and back to planned when anything is lost. Pure.

Owns the open units, the room in the segments and the live keys. Knows nothing of generations, stops or who may commit:
that is `ledger.py`. Each operation is O(log n) in the open samples, but for `regroup`, which looks at all of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from dspark_train.schedule.backlog import Backlog
from dspark_train.schedule.leases import Leases, Unwanted
from dspark_train.schedule.messages import Member
from dspark_train.schedule.rule import FailedSample, LedgerRule
from dspark_train.schedule.slot import OpenUnit, Slot, State
from dspark_train.schedule.steps import Schedule

INTERRUPTIONS_PER_ATTEMPT = 4
"""A dead engine burns no attempt of the samples it held, yet a sample that kills every engine must end some time."""
FAILED_BASE_SAMPLES = 1000
"""The share of failed samples is taken of at least so many, so that the first failure is not a share of 100 %."""


class Flow:
    """The samples of the units between the next to commit and the furthest that was opened."""

    def __init__(
        self, schedule: Schedule, sample_bytes: Callable[[int], int], rule: LedgerRule, first_unit: int
    ) -> None:
        self.reason = ""
        """Why the run cannot go on; set once."""
        self.frontier = first_unit
        """The next unit to open."""
        self.counts: Counter[State] = Counter()
        """Samples of the open units, by state."""
        self.num_failed = 0
        self.num_trained = schedule.num_samples_before(first_unit)
        self.num_regenerated = 0
        self.done_tokens_by: Counter[str] = Counter()
        self.wrong_in_a_row: Counter[str] = Counter()
        """Engine -> its samples that ranks found wrong since one of its was trained."""
        self.failures: list[FailedSample] = []
        """Given up since the caller last emptied it."""
        self.unwanted = Unwanted()
        self.leases = Leases(rule.key_prefix, rule.lease_s)
        self.backlog = Backlog({})
        self._first = first_unit
        self._schedule, self._sample_bytes, self._rule = schedule, sample_bytes, rule
        self._open: dict[int, OpenUnit] = {}
        self._groups: list[tuple[int, tuple[Member, ...]]] = []
        """First unit -> who trains from there on, in order: the group of now, and at most one that is announced."""

    # -- units -----------------------------------------------------------------------------------------------------

    def get(self, unit: int, limit: int) -> OpenUnit | None:
        """The unit, opened if it may be: below ``limit``, and not too far ahead."""
        while self.frontier <= unit and self._open_next(limit):
            pass
        return self._open.get(unit)

    def regroup(self, members: Sequence[Member], first_unit: int) -> None:
        """Give the packs of the units from ``first_unit`` on to new members; those before stay with whom they are.

        An object stays where its segment still trains it, if that leaves the units before it room for all their
        samples; the rest goes back to planned.
        """
        before = self._groups[:1] if first_unit > self._first else []
        self._groups = [*before, (first_unit, tuple(members))]
        self.backlog = self._new_backlog()
        needed: Counter[str] = Counter()
        for index in sorted(self._open):
            opened = self._open[index]
            if index >= first_unit:
                opened.assign(members)
            for slot in opened.slots:
                if slot.state is State.FAILED:
                    continue
                needed[slot.home] += slot.num_bytes
                if index >= first_unit:
                    is_room = needed[slot.home] <= self.backlog.marks_bytes[slot.home]
                    self._place(slot, is_kept=is_room and slot.segment == slot.home)
                elif slot.key:
                    self.backlog.hold(slot)
                elif slot.state is State.PLANNED:
                    self.backlog.push(slot)
            self._check_room(opened)

    def switch(self) -> None:
        """The announced group is the group now: all units of the one before are retired."""
        self._groups = self._groups[-1:]
        self.backlog.drop_leaving()

    def members_of(self, unit: int) -> tuple[Member, ...]:
        """Who trains a unit."""
        return next((members for first, members in reversed(self._groups) if first <= unit), ())

    def _new_backlog(self) -> Backlog:
        """An empty one with the segments of all groups."""
        high = self._rule.high_mark_frac
        marks = {m.segment: int(m.capacity_bytes * high) for _, members in reversed(self._groups) for m in members}
        return Backlog(marks, leaving=marks.keys() - {member.segment for member in self._groups[-1][1]})

    def _place(self, slot: Slot, *, is_kept: bool) -> None:
        """Enter a slot into the new backlog."""
        if is_kept and slot.key:
            self.backlog.hold(slot)
            if slot.state is not State.LEASED:
                self._move(slot, State.READY)
                self._open[slot.unit].share_of(slot).ready[slot.index] = slot
            return
        if slot.state is not State.PLANNED:
            self._drop_key(slot, None if slot.state is not State.LEASED else slot.leased_at_s + self.leases.lease_s)
            self.num_regenerated += 1
            self._move(slot, State.PLANNED)
        self.backlog.push(slot)

    def retire(self, unit: int) -> None:
        """The unit is trained: its samples are counted, their room is free."""
        for slot in self._open.pop(unit).slots:
            if slot.key:
                self.backlog.free(slot)
                self.leases.forget(slot)
            self.num_trained += slot.state is State.TAKEN
            self.counts[slot.state] -= 1
            if slot.state is State.TAKEN:
                self.wrong_in_a_row.pop(slot.engine, None)
        self._first = unit + 1

    def settle(self, unit: int) -> None:
        """Let every sample of an open unit count as taken, but for those given up.

        What is queued of it stays in the backlog: regroup next.
        """
        for slot in self._open[unit].slots:
            if slot.state in (State.LEASED, State.READY):
                self.backlog.free(slot)
                self._drop_key(slot, slot.leased_at_s + self.leases.lease_s if slot.state is State.LEASED else None)
            if slot.state is not State.FAILED:
                self._move(slot, State.TAKEN)

    def disown(self, engine: str) -> list[Slot]:
        """What an engine that is gone has put is not counted to who takes its name. Returns what no rank has taken."""
        self.wrong_in_a_row.pop(engine, None)
        put = [slot for slot in self._put() if slot.engine == engine]
        for slot in put:
            slot.engine = ""
        return [slot for slot in put if slot.state is State.READY]

    def lose_ready(self, now_s: float) -> int:
        """What is ready, and was not handed out, is gone from the store. Returns how many."""
        slots = [slot for slot in self._put() if slot.state is State.READY]
        for slot in slots:
            self.interrupt(slot, now_s)
        return len(slots)

    def _put(self) -> Iterator[Slot]:
        for opened in self._open.values():
            yield from (slot for slot in opened.slots if slot.state in (State.READY, State.TAKEN))

    def _open_next(self, limit: int) -> bool:
        if self.frontier >= min(limit, self._first + self._rule.max_units_ahead) or not self._groups or self.reason:
            return False
        opened = OpenUnit(self._schedule.unit(self.frontier), self._sample_bytes)
        opened.assign(self.members_of(self.frontier))
        self._open[self.frontier] = opened
        self.frontier += 1
        self.counts[State.PLANNED] += len(opened.slots)
        for slot in opened.slots:
            self.backlog.push(slot)
        self._check_room(opened)
        return True

    def _check_room(self, opened: OpenUnit) -> None:
        """A unit that can never be ready as a whole must not hang the run: say so."""
        unit = opened.unit
        in_parts = unit.kind == "validate" and self._rule.ranks_release
        less = "set a lower validation.max_packs" if unit.kind == "validate" else "lower data.step_packs"
        for member, share in zip(self.members_of(unit.index), opened.shares, strict=True):
            mark = self.backlog.marks_bytes[member.segment]
            needed = share.max_bytes if in_parts else share.num_bytes
            if needed > mark and not self.reason:
                what = "a sample" if in_parts else "the share"
                self.reason = (
                    f"{unit.kind} unit {unit.index} (step {unit.step}): {what} of {member.name} takes {needed} bytes, "
                    f"but only {mark} of its segment {member.segment} may be filled: raise store.segment_gib, or {less}"
                )

    # -- samples ---------------------------------------------------------------------------------------------------

    def next(self, limit: int) -> Slot | None:
        """The first planned sample in schedule order, below unit ``limit``, whose segment has room."""
        while (slot := self.backlog.peek()) is None:
            if self.backlog.is_full or not self._open_next(limit):
                return None
        return slot if slot.unit < limit else None

    def lease(self, slot: Slot, engine: str, now_s: float) -> None:
        """Lease what :meth:`next` returned."""
        self.backlog.pop(slot)
        self.leases.begin(slot, engine, now_s)
        self._move(slot, State.LEASED)

    def accept(self, slot: Slot, num_bytes: int, now_s: float) -> None:
        """A leased sample is in the store, unless its size says that it is not this sample."""
        if num_bytes != slot.num_bytes:
            self.give_up(slot, now_s, f"{slot.engine} put {num_bytes} bytes where {slot.num_bytes} were expected")
            return
        self.leases.finish(slot)
        self.done_tokens_by[slot.engine] += slot.num_tokens
        self._open[slot.unit].share_of(slot).ready[slot.index] = slot
        self._move(slot, State.READY)

    def hand_out(self, opened: OpenUnit, rank: int) -> list[Slot]:
        """What is ready of a rank's share and was not handed out; it is taken now."""
        share = opened.shares[rank]
        taken = list(share.ready.values())
        share.ready.clear()
        share.num_pending -= len(taken)
        for slot in taken:
            self._move(slot, State.TAKEN)
        return taken

    def release(self, slot: Slot) -> None:
        """A taken sample's object was read and removed: its room is free; the sample stays taken."""
        self.backlog.free(slot)
        self.leases.forget(slot)

    def interrupt(self, slot: Slot, now_s: float, reason: str = "") -> None:
        """A leased sample came to nothing, and not by its own fault: no attempt is burnt.

        reason: why, where it is not that its engine is gone, or was not heard of.
        """
        slot.num_interruptions += 1
        self._return(slot, now_s, reason or f"{slot.num_interruptions} engines died or fell silent with it")

    def give_up(self, slot: Slot, now_s: float, reason: str) -> None:
        """An attempt at a leased, ready or taken sample failed: it goes back to planned, or is failed for good."""
        slot.num_failures += 1
        self._return(slot, now_s, reason)

    def _return(self, slot: Slot, now_s: float, reason: str) -> None:
        share = self._open[slot.unit].share_of(slot)
        share.num_pending += slot.state is State.TAKEN
        share.ready.pop(slot.index, None)
        self.backlog.free(slot)
        self._drop_key(slot, now_s + self.leases.lease_s if slot.state is State.LEASED else None)
        self.num_regenerated += 1
        limit = self._rule.max_attempts
        if slot.num_failures < limit and slot.num_interruptions < limit * INTERRUPTIONS_PER_ATTEMPT:
            self._move(slot, State.PLANNED)
            self.backlog.push(slot)
            return
        share.num_pending -= 1
        share.failed.append((slot.pack, slot.piece))
        self._move(slot, State.FAILED)
        self.num_failed += 1
        self.failures.append(FailedSample(slot.sample, slot.unit, reason))
        self._check_failures(reason)

    def _drop_key(self, slot: Slot, due_s: float | None) -> None:
        """The slot's object is not wanted; due_s: until when it may yet be put, None where it is there."""
        if not slot.key:
            return
        key = self.leases.forget(slot)
        if due_s is None:
            self.unwanted.add(key)
        else:
            self.unwanted.add_later(key, due_s)

    def _check_failures(self, last: str) -> None:
        base = max(self.num_trained + self.num_failed, FAILED_BASE_SAMPLES)
        if not self.reason and self.num_failed > self._rule.max_failed_frac * base:
            self.reason = (
                f"{self.num_failed} samples failed after {self._rule.max_attempts} attempts each, more than "
                f"ledger.max_failed_frac ({self._rule.max_failed_frac:g}) of {base}; the last: {last}. Look into the "
                "engines' logs"
            )

    def _move(self, slot: Slot, state: State) -> None:
        self.counts[slot.state] -= 1
        self.counts[state] += 1
        slot.state = state
