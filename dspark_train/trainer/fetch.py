"""The prefetch thread of a rank: what the ledger hands out is read straight to its final place in a pack buffer.

It runs ahead of the training thread as far as the ring has room. A sample that cannot be read, or is wrong, goes back
to the ledger, which has it extracted again or gives it up. The ledger or the store not answering is waited out, up to
the group's time-out, and recorded. Nothing here blocks longer than one long poll or one read.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dspark_train.errors import PeerError, StoreError
from dspark_train.peers import Peers
from dspark_train.schedule.messages import Lost, TakeReply
from dspark_train.schedule.unit import Unit
from dspark_train.store.protocol import StoreClient
from dspark_train.trainer.in_hand import UnitInHand
from dspark_train.trainer.packs import TokenRows, zero_gaps
from dspark_train.trainer.patience import Patience
from dspark_train.trainer.reading import Batch, SampleReader
from dspark_train.trainer.ring import PackRing, Slot

TAKE_WAIT_S = 2.0
"""One long poll for samples; also how long stopping may have to wait for the ledger."""
CALL_SPARE_S = 10.0
"""What a call may take beyond its own wait."""
END_LOOK_S = 0.02
READ_LOOK_S = 0.1
"""How long the end of a read is waited for before stopping is looked for."""
MAX_READ_SAMPLES = 64
"""Samples of one read: enough to hide its latency, few enough that the first pack is not held up by the last."""
MAX_READ_BYTES = 32 << 20
"""Of one read, if it is of several samples: there should be several reads to do at a time."""


@dataclass(frozen=True)
class FetchPlan:
    """What a rank fetches.

    unit_at: the schedule's unit, None beyond the last; share: the packs of a unit (by their number) that are this
    rank's; first_unit: where the group begins; max_units: units in hand at once, the one in training included;
    outage_s: how long ledger and store may be silent; generation: of the group, so that the ledger knows an old one.
    """

    member: str
    unit_at: Callable[[int], Unit | None]
    share: Callable[[int], range]
    first_unit: int
    max_units: int
    outage_s: float
    generation: int


class Fetcher:
    """Fills the ring in the order of the schedule, in a thread of its own. Close it with :meth:`stop`."""

    def __init__(
        self,
        plan: FetchPlan,
        peers: Peers,
        store: StoreClient,
        ring: PackRing,
        tokens: TokenRows,
        release: Callable[[list[str]], None],
        log: logging.Logger,
    ) -> None:
        """release: called with keys of a validation round once they are read: it may be larger than the store."""
        self._release = release
        self._plan, self._peers, self._ring, self._log = plan, peers, ring, log
        self._reader = SampleReader(store, ring, tokens)
        self._in_hand: list[UnitInHand] = []
        self._next_unit = plan.first_unit
        self._keys: dict[int, list[str]] = {}
        self._in_store_s: dict[int, float] = {}
        self._num_done = 0
        self._last_asked = plan.first_unit - 1
        self._end: TakeReply | None = None
        self._end_unit = 0
        self._error: BaseException | None = None
        self._stopping = threading.Event()
        self._is_asking = False
        self._has_peeked = False
        """Whether the ledger was asked for more, without waiting, since the last read ended."""
        self._thread = threading.Thread(target=self._run, name="fetch", daemon=True)
        self._patience = Patience(plan.outage_s, self._stopping, log)
        self.num_lost = 0

    @property
    def fault(self) -> str:
        """What is being waited out now: the ledger or the store not answering; "" where all is well."""
        return self._patience.fault

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_s: float) -> bool:
        """End the thread; whether it ended in time. Slots being filled stay so until the ring is cleared.

        A call to the ledger is not waited for: what it answers is thrown away, and nothing else is touched after it.
        """
        self._stopping.set()
        self._ring.wake()
        deadline_s = time.monotonic() + timeout_s
        while self._thread.is_alive() and not self._is_asking and time.monotonic() < deadline_s:
            self._thread.join(END_LOOK_S)
        return not self._thread.is_alive() or self._is_asking

    def get(self, unit: int, pack: int, timeout_s: float) -> Slot | TakeReply | None:
        """The full slot of a pack, now in use; the ledger's reply where it ends at or before this unit; else None.

        Blocks up to ``timeout_s``, or until it is stopped. Raises what ended the thread.
        """
        got: list[Slot | TakeReply] = []

        def ready() -> bool:
            if self._error is not None:
                raise self._error
            slot = self._ring.take((unit, pack))
            if slot is not None:
                got.append(slot)
            elif (end := self._ended(unit)) is not None:
                got.append(end)
            return bool(got) or self._stopping.is_set()

        self._ring.wait(ready, timeout_s)
        return got[0] if got else None

    def end_at(self, unit: int, timeout_s: float) -> TakeReply | bool:
        """Whether the ledger ends the run at or before this unit: its reply; True where not, False while unknown.

        Blocks up to ``timeout_s``. Raises what ended the thread.
        """

        def ready() -> bool:
            if self._error is not None:
                raise self._error
            return self._ended(unit) is not None or self._last_asked >= unit

        if not self._ring.wait(ready, timeout_s):
            return False
        return self._ended(unit) or True

    def _ended(self, unit: int) -> TakeReply | None:
        return self._end if self._end is not None and unit >= self._end_unit else None

    def finish(self, unit: int) -> list[str]:
        """The unit is over: room for the next one. Returns the keys of its samples, to be removed."""
        self._num_done += 1
        self._ring.wake()
        self._in_store_s.pop(unit, None)
        return self._keys.pop(unit, [])

    def in_store_s(self, unit: int) -> float | None:
        """Since when (monotonic) all of the rank's samples of a unit are in the store; None while one is to be made."""
        return self._in_store_s.get(unit)

    # -- the thread --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._stopping.is_set() and (self._end is None or self._in_hand):
                self._step()
        except BaseException as error:  # noqa: BLE001 - handed to the training thread, which ends the rank with it
            self._error = error
        finally:
            self._reader.close()
        self._ring.wake()

    def _step(self) -> None:
        self._take_in()
        self._open()
        self._seal_whole()
        reading = next((u for u in self._in_hand if any(s.pack in u.slots for s in u.handed)), None)
        if reading is not None and self._reader.has_room:
            self._reader.begin(reading, reading.readable(MAX_READ_SAMPLES, MAX_READ_BYTES))
            return
        asking = next((u for u in self._in_hand if u.needs_asking()), None)
        if not self._reader.is_idle:
            if asking is not None and self._reader.has_room and not self._has_peeked:
                self._has_peeked = True
                self._ask(asking, 0.0)
            else:
                self._take_in(READ_LOOK_S)
        elif asking is not None:
            self._ask(asking, TAKE_WAIT_S)
        else:
            self._ring.wait(lambda: self._stopping.is_set() or self._can_open(), TAKE_WAIT_S)

    def _can_open(self) -> bool:
        return self._has_room() or (self._ring.has_free() and any(u.unopened for u in self._in_hand))

    def _has_room(self) -> bool:
        """Whether one more unit may be begun: the last one's packs all have slots, and not too many are in hand."""
        if self._end is not None:
            return False
        num_begun = self._next_unit - self._plan.first_unit
        has_room = num_begun - self._num_done < self._plan.max_units and not any(u.unopened for u in self._in_hand)
        return has_room and self._plan.unit_at(self._next_unit) is not None

    def _open(self) -> None:
        """Give free slots to the next packs in order; begin the next unit where there is room."""
        while True:
            waiting = next((u for u in self._in_hand if u.unopened), None)
            if waiting is None:
                if not self._has_room():
                    return
                self._begin()
                continue
            slot = self._ring.claim((waiting.index, waiting.unopened[0]))
            if slot is None:
                return
            waiting.slots[waiting.unopened.pop(0)] = slot

    def _begin(self) -> None:
        unit = self._plan.unit_at(self._next_unit)
        assert unit is not None, "the schedule is at its end"
        self._next_unit += 1
        self._in_hand.append(UnitInHand(unit, self._plan.share(len(unit.packs))))

    def _ask(self, unit: UnitInHand, wait_s: float) -> None:
        args = (self._plan.member, unit.index, wait_s, self._plan.generation, unit.num_received)
        reply = self._patience.call("the ledger", PeerError, lambda: self._call("take", *args, wait_s=wait_s))
        if reply is None or self._stopping.is_set():
            return
        if reply.kind == "samples":
            unit.note(reply)
            if not unit.needs_asking():
                self._in_store_s.setdefault(unit.index, time.monotonic())
            self._last_asked = max(self._last_asked, unit.index)
            self._ring.wake()
        else:
            self._log.info("the ledger ends the run's units at %d: %s", unit.index, reply.kind)
            self._in_hand = [u for u in self._in_hand if u.index < unit.index]
            self._end_unit, self._end = unit.index, reply
            self._ring.wake()

    def _take_in(self, timeout_s: float = 0.0) -> None:
        """Let samples of batches that are read count as here, or as lost; waits up to ``timeout_s`` for the first."""
        lost = []
        while (batch := self._reader.take(timeout_s)) is not None:
            timeout_s, self._has_peeked = 0.0, False
            batch.unit.unread(batch.samples)
            whole = batch if batch.error is None else self._read_again(batch, batch.error)
            if whole is None:
                batch.unit.handed += batch.samples
                break
            for sample, reason, is_unread in zip(whole.samples, whole.reasons, whole.are_unread, strict=True):
                if reason:
                    self._in_store_s.pop(whole.unit.index, None)
                    lost.append(Lost(sample.key, reason, is_wrong=not is_unread))
                else:
                    whole.unit.missing[sample.pack].discard(sample.piece)
                    whole.unit.keys.append(sample.key)
        self._report(lost)

    def _read_again(self, batch: Batch, error: BaseException) -> Batch | None:
        """Read what the store failed to give, as long as that is waited out; None where the rank is to end."""
        failures = [error]

        def read() -> Batch:
            if failures:
                raise failures.pop()
            return self._reader.read(batch.unit, batch.samples)

        return self._patience.call("the store", StoreError, read)

    def _report(self, lost: list[Lost]) -> None:
        if not lost:
            return
        self.num_lost += len(lost)
        for one in lost:
            self._log.warning("sample %s is lost: %s", one.key, one.reason)
        args = (self._plan.member, lost)
        self._patience.call("the ledger", PeerError, lambda: self._call("lost", *args, wait_s=0.0))

    def _seal_whole(self) -> None:
        """Hand every pack that is whole to the training thread, and drop units of which nothing more is to come."""
        for unit in self._in_hand:
            for pack in [pack for pack in unit.slots if not unit.missing[pack]]:
                slot, failed = unit.slots.pop(pack), frozenset(unit.failed[pack])
                zero_gaps(slot, unit.unit.packs[pack].pieces, failed)
                slot.failed = failed
                if unit.unit.kind == "validate":
                    self._release(unit.keys)
                    unit.keys = []
                self._keys[unit.index] = unit.keys
                self._ring.seal(slot)
        self._in_hand = [u for u in self._in_hand if not u.asked or u.unopened or u.slots or u.handed]

    def _call(self, method: str, *args: Any, wait_s: float) -> Any:
        self._is_asking = True
        try:
            return self._peers.call("ledger", method, *args, timeout_s=wait_s + CALL_SPARE_S)
        finally:
            self._is_asking = False
