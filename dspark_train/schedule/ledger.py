"""The ledger of a run: engines lease and report, ranks take, rank 0 commits unit after unit. Pure, the clock passed in.

What becomes of single samples is `flow.py`'s; here stand the group and its generation, the order of commits, the stop,
and what is answered to whom. Everything not committed may be lost and is made anew. See docs/ledger.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from dspark_train.schedule.counts import Counts
from dspark_train.schedule.flow import Flow
from dspark_train.schedule.messages import Lease, LedgerState, LedgerView, Lost, Member, Ready, TakenSample, TakeReply
from dspark_train.schedule.rule import FailedSample, LedgerRule
from dspark_train.schedule.slot import Slot, State
from dspark_train.schedule.steps import Schedule
from dspark_train.schedule.succession import Succession
from dspark_train.schedule.unit import Unit

UNWANTED_KEYS_AT_ONCE = 512


class Ledger:
    """The state of a run's samples. ``now_s`` is the time of any clock that does not go back."""

    def __init__(
        self, schedule: Schedule, sample_bytes: Callable[[int], int], rule: LedgerRule, first_unit: int = 0
    ) -> None:
        """sample_bytes: size in the store of a sample of so many tokens; first_unit: the first that is not done yet."""
        self.unit = first_unit
        """The next unit to commit."""
        self._schedule, self._rule = schedule, rule
        self._flow = Flow(schedule, sample_bytes, rule, first_unit)
        self.groups = Succession()
        self._running = False
        self._boundary: int | None = None
        self._stop_now = False
        self._given = -1
        self._committed_generation = -1
        self._counts = Counts(schedule, self._flow)

    # -- the group and the course of the run -----------------------------------------------------------------------

    def set_group(self, members: Sequence[Member], generation: int) -> int:
        """Share the packs among ``members`` from the next uncommitted unit on; returns that unit.

        Objects whose segment still trains them are kept, and handed out again if they were taken; the others go back
        to planned. Raises ValueError for an older generation, or without a member.
        """
        self.groups.check(members, generation)
        self.groups.enter(members, generation)
        self._given = -1
        self._flow.regroup(members, self.unit)
        self._flow.get(self.unit, self._limit())
        return self.unit

    def announce_group(self, members: Sequence[Member], generation: int) -> int:
        """Let ``members`` take over at a unit ahead, which is returned; the group of now does the units before it.

        The unit is the one after the last that any rank was given completely, as at a stop. What is leased from now on
        for it and later ones goes to the new members' segments, so that they find it there. Raises ValueError as
        `set_group`, and while another group is announced.
        """
        self.groups.check(members, generation)
        first = min(max(self.unit, self._given + 1), self._schedule.num_units)
        self.groups.announce(first, members, generation)
        self._flow.regroup(members, first)
        self._switch_if_due()
        return first

    def _switch_if_due(self) -> None:
        if self.groups.takes_over(self.unit):
            self.groups.switch()
            self._flow.switch()
            self._given = -1

    def run(self) -> None:
        """Let leases begin."""
        self._running = True

    def announce_stop(self, now: bool) -> int:
        """Fix the boundary, the first unit that is not to be done, and return it.

        It lies one past the last unit that any rank was given completely, since that rank may be training it already
        and the others must join in; without such a unit it is the next to commit. A second call does not move it.
        """
        self._stop_now |= now
        if self._boundary is None:
            self._boundary = min(max(self.unit, self._given + 1), self._schedule.num_units)
        return self._boundary

    @property
    def state(self) -> LedgerState:
        """Where the run is. A failed run still does the units that ranks were given, as at a stop."""
        if self._flow.reason:
            return "failed"
        if self.unit >= self._schedule.num_units:
            return "done"
        if self._boundary is not None:
            return "stopped" if self.unit >= self._boundary else "stopping"
        return "running" if self._running else "idle"

    @property
    def num_regenerated(self) -> int:
        """How often a sample went back to planned, or failed, since the ledger was made."""
        return self._flow.num_regenerated

    def _limit(self) -> int:
        """The first unit that is not to be done."""
        if self._flow.reason and self._boundary is None:
            self.announce_stop(now=False)
        return self._schedule.num_units if self._boundary is None else self._boundary

    # -- engines ---------------------------------------------------------------------------------------------------

    def lease(self, engine: str, max_samples: int, max_tokens: int, now_s: float) -> list[Lease]:
        """Samples for an engine in schedule order, as far as segments have room. May be empty.

        Ends at the first that ``max_tokens`` does not cover: were it passed over, it might wait for ever.
        """
        leases: list[Lease] = []
        limit = self._limit() if self._running else self.unit
        while len(leases) < max_samples:
            slot = self._flow.next(limit)
            if slot is None or slot.num_tokens > max_tokens:
                break
            max_tokens -= slot.num_tokens
            self._flow.lease(slot, engine, now_s)
            leases.append(slot.as_lease(self._rule.lease_s))
        return leases

    def report(self, engine: str, ready: Iterable[Ready], lost: Iterable[Lost], now_s: float) -> list[str]:
        """What became of an engine's leases. Returns keys for it to remove: late ones, and leftovers of others.

        A repeated report on an object that is in use changes nothing, and its key is not returned.
        """
        self._flow.leases.hear(engine, now_s)
        late = []
        for done in ready:
            slot = self._flow.leases.slot(done.key)
            if slot is None:
                late.append(done.key)
            elif slot.state is State.LEASED:
                self._flow.accept(slot, done.num_bytes, now_s)
        for gone in lost:
            slot = self._flow.leases.slot(gone.key)
            if slot is None:
                late.append(gone.key)
            elif slot.state is not State.TAKEN and gone.is_unreachable:
                self._flow.interrupt(slot, now_s, f"{engine}: {gone.reason}")
            elif slot.state is not State.TAKEN:
                self._flow.give_up(slot, now_s, f"{engine}: {gone.reason}")
        return late + self.pop_unwanted(now_s)

    def drop_engine(self, engine: str, now_s: float, *, is_suspect: bool = False) -> int:
        """The engine is gone: its leases go back, and burn no attempt. Returns how many samples go back.

        is_suspect: it was found to lie, so what it has put and no rank has taken goes back as well.
        """
        put = self._flow.disown(engine)
        held = [*self._flow.leases.held_by(engine), *(put if is_suspect else ())]
        for slot in held:
            self._flow.interrupt(slot, now_s)
        return len(held)

    def expire(self, now_s: float) -> int:
        """Put back what was not ready in time; returns how many.

        It burns an attempt only where the engine was heard of since the lease began: else the engine is at fault.
        """
        over = self._flow.leases.expired(now_s)
        for slot, was_heard in over:
            if was_heard:
                self._flow.give_up(slot, now_s, f"{slot.engine}: not ready within {self._rule.lease_s:g} s")
            else:
                self._flow.interrupt(slot, now_s)
        return len(over)

    def pop_unwanted(self, now_s: float, max_keys: int = UNWANTED_KEYS_AT_ONCE) -> list[str]:
        """Keys whose objects are of no use any more, each returned once, for the caller to remove."""
        return self._flow.unwanted.pop(now_s, max_keys)

    def pop_failures(self) -> list[FailedSample]:
        """The samples given up since this was last asked."""
        failures, self._flow.failures = self._flow.failures, []
        return failures

    # -- ranks -----------------------------------------------------------------------------------------------------

    def take(self, rank: str, unit: int, generation: int | None = None, num_received: int | None = None) -> TakeReply:
        """Hand a rank what is ready of its share of ``unit``.

        num_received: samples of this unit that have reached the rank so far; what was handed out after those is handed
        out again, since the reply was lost on the way. None: each sample is handed out once. "regroup" answers a rank
        that is not in the group (where a generation is given: in that one), and a request for a unit already committed.
        """
        number = self.groups.rank_of(rank)
        if number is None or unit < self.unit or generation not in (None, self.groups.generation):
            return TakeReply("regroup")
        if unit >= self._limit():
            return TakeReply("done") if unit >= self._schedule.num_units else TakeReply("stop", now=self._stop_now)
        if self.groups.takes_over(unit):
            return TakeReply("regroup")
        opened = self._flow.get(unit, self._limit())
        if opened is None:
            return TakeReply("samples")
        share = opened.shares[number]
        first = len(share.given) if num_received is None else num_received
        share.given += [
            TakenSample(slot.pack, slot.piece, slot.key, slot.num_bytes) for slot in self._flow.hand_out(opened, number)
        ]
        if share.num_pending == 0:
            self._given = max(self._given, unit)
        return TakeReply("samples", tuple(share.given[first:]), tuple(share.failed), share.num_pending == 0)

    def lost(self, rank: str, lost: Iterable[Lost], now_s: float) -> int:
        """Samples that a rank took but cannot read, or must not train on; returns how many are made anew."""
        told = {gone.key: gone for gone in lost}
        slots = self._taken_by(rank, told)
        for slot in slots:
            gone = told[slot.key]
            self._flow.wrong_in_a_row[slot.engine] += gone.is_wrong
            self._flow.give_up(slot, now_s, f"{rank}: {gone.reason}")
        return len(slots)

    def lose_store(self, now_s: float) -> int:
        """The store has lost every object: what is ready goes back to planned, and burns no attempt. Returns how many.

        Leased samples may yet be put, and ranks tell of what they took and cannot read.
        """
        return self._flow.lose_ready(now_s)

    def release(self, rank: str, keys: Iterable[str]) -> int:
        """A rank has read, checked and removed these taken samples: their room is free. Returns how many.

        Without it the commit frees the room; a unit larger than the store (a validation round) cannot do without.
        """
        slots = self._taken_by(rank, keys)
        for slot in slots:
            self._flow.release(slot)
        return len(slots)

    def _taken_by(self, rank: str, keys: Iterable[str]) -> list[Slot]:
        found = (self._flow.leases.slot(key) for key in dict.fromkeys(keys))
        number = self.groups.rank_of(rank)
        return [slot for slot in found if slot is not None and slot.state is State.TAKEN and slot.rank == number]

    def committable(self, unit: int, generation: int) -> Unit | None:
        """The unit, if it is the next one, of the present generation, and was handed out completely; else None."""
        if unit != self.unit or generation != self.groups.generation:
            return None
        opened = self._flow.get(unit, self._limit())
        return opened.unit if opened is not None and all(not share.num_pending for share in opened.shares) else None

    def was_committed(self, unit: int, generation: int) -> bool:
        """Whether this repeats the last commit, whose answer may have got lost on the way."""
        return unit == self.unit - 1 and generation == self._committed_generation

    def commit(self, unit: int, generation: int) -> bool:
        """The unit is trained. False where it is not :meth:`committable`; then nothing is changed."""
        if self.committable(unit, generation) is None:
            return False
        self._retire(generation)
        return True

    def adopt(self, unit: int) -> Unit | None:
        """A unit that all ranks have trained and that could not be committed: its committer or the ledger died.

        Its samples count as trained whatever is known of them here, and what ranks took of later units is handed out
        again: to be called while none trains, after `set_group`. None, and nothing changed, where it is not the next
        unit.
        """
        opened = self._flow.get(unit, self._limit()) if unit == self.unit else None
        if opened is None:
            return None
        self.groups.enter(self.groups.members, self.groups.generation)
        self._flow.settle(unit)
        self._retire(self.groups.generation)
        self._flow.regroup(self.groups.members, self.unit)
        return opened.unit

    def _retire(self, generation: int) -> None:
        self._flow.retire(self.unit)
        self.unit, self._committed_generation = self.unit + 1, generation
        self._switch_if_due()

    # -- looking ---------------------------------------------------------------------------------------------------

    def view(self) -> LedgerView:
        """The counts now, and the group of now."""
        return replace(
            self._counts.view(self.unit, self.state, self._rule.key_prefix),
            generation=self.groups.generation,
            members=tuple(member.name for member in self.groups.members),
            is_handed_out=self.committable(self.unit, self.groups.generation) is not None,
        )
