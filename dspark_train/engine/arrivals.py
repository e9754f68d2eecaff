"""Learns which of the answered samples have arrived in the store: one question for all of them at once.

An answer does not mean that the object is there: the engine puts it meanwhile, or a marker where it cannot.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from typing import Protocol

from dspark_train.engine.conduct import Blame
from dspark_train.engine.in_flight import Flight, InFlight
from dspark_train.engine.marker import marker_key
from dspark_train.engine.probe import read_marker
from dspark_train.engine.puts import SHUN_S
from dspark_train.engine.wake import Wake
from dspark_train.errors import SampleMissing, StoreError
from dspark_train.schedule.messages import Lease
from dspark_train.store.protocol import StoreClient

FIRST_POLL_S = 0.002
LONGEST_POLL_S = 0.05
IDLE_S = 5.0
TRIAL_SUFFIX = ":trial"


class Outcome(Protocol):
    """Who is told of what became of a flight."""

    def arrived(self, flight: Flight) -> None: ...

    def lose(self, key: str, reason: str, blame: Blame = "", held_s: float = 0.0) -> None: ...

    def note(self, text: str) -> None: ...


class Arrivals:
    """Asks the store for the answered flights; :meth:`run` does so until it is cancelled."""

    def __init__(self, store: StoreClient, flights: InFlight, outcome: Outcome, clock: Callable[[], float]) -> None:
        self._store, self._flights, self._outcome, self._clock = store, flights, outcome, clock
        self._wake = Wake()
        self.failed_s = -math.inf
        """When the store last did not answer."""

    def expect(self) -> None:
        """A flight was answered."""
        self._wake.set()

    async def run(self) -> None:
        """Ask often while samples arrive, and less often while none does."""
        pause_s = FIRST_POLL_S
        while True:
            flights = self._flights.answered()
            if not flights:
                await self._wake.wait(IDLE_S)
                continue
            num_before = len(self._flights)
            try:
                await self._look(flights)
            except StoreError as error:
                self.failed_s = self._clock()
                self._outcome.note(f"the store does not say what has arrived: {error}")
            await self._give_up_late(flights)
            pause_s = FIRST_POLL_S if len(self._flights) < num_before else min(2 * pause_s, LONGEST_POLL_S)
            await asyncio.sleep(pause_s)

    async def _look(self, flights: Sequence[Flight]) -> None:
        keys = [flight.lease.key for flight in flights]
        there = await asyncio.to_thread(self._store.exist, [*keys, *map(marker_key, keys)])
        for flight, arrived, failed in zip(flights, there[: len(keys)], there[len(keys) :], strict=True):
            if failed:
                await self._failed_put(flight.lease.key)
            elif arrived:
                self._outcome.arrived(flight)

    async def _failed_put(self, key: str) -> None:
        try:
            marker = await asyncio.to_thread(read_marker, self._store, key)
        except SampleMissing as error:
            self._outcome.lose(key, f"the engine could not put it; why cannot be read: {error}", "alive")
            return
        reason = f"the store is full: {marker.text}" if marker.kind == "full" else marker.text
        held_s = SHUN_S if marker.kind == "unreachable" else 0.0
        self._outcome.lose(key, reason, "wrong" if marker.kind == "wrong" else "alive", held_s)

    async def _give_up_late(self, flights: Sequence[Flight]) -> None:
        late = [flight for flight in flights if self._clock() > flight.deadline_s]
        taking = {
            lease.segment: await self._takes(lease) for lease in {f.lease.segment: f.lease for f in late}.values()
        }
        for flight in late:
            # That the store could not be asked, or takes nothing from us either, is not the engine's fault.
            is_engines = self.failed_s < flight.begun_s and taking[flight.lease.segment]
            reason = "answered in time, and then not in the store before its deadline"
            self._outcome.lose(flight.lease.key, reason, "timeout" if is_engines else "")

    async def _takes(self, lease: Lease) -> bool:
        """Whether something can be put where the engine should have put it."""
        key = f"{lease.key}{TRIAL_SUFFIX}"
        try:
            await asyncio.to_thread(self._store.put, key, b"trial", lease.segment)
            await asyncio.to_thread(self._store.remove, [key])
        except StoreError as error:
            self._outcome.note(f"{lease.key} did not arrive, and nothing can be put there: {error}")
            return False
        return True
