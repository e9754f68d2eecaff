"""What a feeder still has to tell the ledger, and the keys that it has to see removed from the store.

Reports are collected and sent together; while the ledger cannot be reached they wait. Keys given up are looked after
for a while: a put may end long after its request was given up, and nobody else would know of the object.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Iterable

from dspark_train.engine.ledger_line import LedgerLine
from dspark_train.engine.marker import marker_key
from dspark_train.engine.wake import Wake, set_within
from dspark_train.errors import PeerError, StoreError
from dspark_train.schedule.messages import Lost, Ready
from dspark_train.store.protocol import StoreClient

RETRY_S = 0.5
SWEEP_S = 5.0
LATE_PUT_S = 120.0
"""A put into the segment of a stopped host ends after a minute; after two, no object of a key given up can come."""

logger = logging.getLogger(__name__)


class Outbox:
    """Reports to the ledger, removals from the store; :meth:`run` does both until it is cancelled."""

    def __init__(
        self, ledger: LedgerLine, store: StoreClient, clock: Callable[[], float], heard: Callable[[], None]
    ) -> None:
        """heard: called whenever the ledger has answered."""
        self._ledger, self._store, self._clock, self._heard = ledger, store, clock, heard
        self._ready: list[Ready] = []
        self._lost: list[Lost] = []
        self._held: list[tuple[float, Lost]] = []
        self._unwanted: set[str] = set()
        self._given_up: dict[str, float] = {}
        self._has_to_call = False
        self._wake = Wake()
        self._empty = asyncio.Event()
        self._empty.set()

    def ready(self, key: str, num_bytes: int) -> None:
        """The object is there."""
        self._ready.append(Ready(key, num_bytes))
        self._changed()

    def lost(self, key: str, reason: str, held_s: float = 0.0) -> None:
        """The sample is not to be had under this key. held_s: where its segment takes nothing, for how long to keep
        that from the ledger.
        """
        if held_s:
            self._held.append((self._clock() + held_s, Lost(key, reason, is_unreachable=True)))
        else:
            self._lost.append(Lost(key, reason))
            self._changed()
        self.forget([key])

    def forget(self, keys: Iterable[str]) -> None:
        """Remove the objects of ``keys`` if they come after all."""
        until_s = self._clock() + LATE_PUT_S
        self._given_up |= dict.fromkeys(keys, until_s)

    async def run(self) -> None:
        """Send and remove as there is something to, and sweep what came late."""
        swept_s = self._clock()
        while True:
            await self._wake.wait(SWEEP_S)
            sent = await self._report()
            if self._clock() - swept_s >= SWEEP_S:
                swept_s = self._clock()
                self._sweep()
            removed = await self._remove()
            if not (self._ready or self._lost):
                self._empty.set()
            if not (sent and removed):
                await asyncio.sleep(RETRY_S)
                self._wake.set()

    def say_something(self) -> None:
        """Call the ledger, if only to see that it answers."""
        self._has_to_call = True
        self._wake.set()

    async def flushed(self, timeout_s: float) -> bool:
        """Whether the ledger has been told everything within ``timeout_s``, what is held back included."""
        self._release(math.inf)
        return await set_within(self._empty, timeout_s)

    def _changed(self) -> None:
        self._empty.clear()
        self._wake.set()

    async def _report(self) -> bool:
        ready, lost = self._ready, self._lost
        if not (ready or lost or self._has_to_call):
            return True
        self._ready, self._lost, self._has_to_call = [], [], False
        try:
            unwanted = await self._ledger.report(ready, lost)
        except PeerError as error:
            # Told again later: the ledger takes a repeated report as the same one.
            logger.warning("the ledger was not told of %d samples: %s", len(ready) + len(lost), error)
            self._ready, self._lost = ready + self._ready, lost + self._lost
            return False
        self._heard()
        self._unwanted.update(unwanted)
        return True

    def _release(self, until_s: float) -> None:
        """What was held back until ``until_s`` or earlier is to be told now."""
        due = [lost for due_s, lost in self._held if due_s <= until_s]
        self._held = [held for held in self._held if held[0] > until_s]
        if due:
            self._lost += due
            self._changed()

    def _sweep(self) -> None:
        now_s = self._clock()
        self._release(now_s)
        self._unwanted.update(self._given_up)
        self._given_up = {key: until_s for key, until_s in self._given_up.items() if until_s > now_s}

    async def _remove(self) -> bool:
        keys = list(self._unwanted)
        if not keys:
            return True
        try:
            await asyncio.to_thread(self._store.remove, [*keys, *map(marker_key, keys)])
        except StoreError as error:
            logger.warning("%d objects that nobody wants are not removed yet: %s", len(keys), error)
            return False
        self._unwanted.difference_update(keys)
        return True
