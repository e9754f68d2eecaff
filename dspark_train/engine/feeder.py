"""Keeps one engine fed: leases from the ledger, extracts over HTTP, and tells the ledger what has arrived in the store.

Work is pulled, and as much is kept in flight as the limits allow. Runs in one event loop; whatever blocks runs in a
thread.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine

import httpx

from dspark_train.engine.arrivals import Arrivals
from dspark_train.engine.conduct import Blame, Conduct, Rule, verdict
from dspark_train.engine.depth_watch import DepthWatch
from dspark_train.engine.extract import EngineRefused, HiddenShape, RequestRejected
from dspark_train.engine.in_flight import Flight, InFlight, Limits
from dspark_train.engine.ledger_line import LEASE_TIMEOUT_S, LEASE_WAIT_S, REPORT_TIMEOUT_S, LedgerLine
from dspark_train.engine.outbox import RETRY_S, Outbox
from dspark_train.engine.requests import Requests, TokenIds
from dspark_train.engine.wake import Wake, set_within
from dspark_train.errors import DataError, PeerError, WrongData
from dspark_train.peers import Peers
from dspark_train.store.protocol import StoreClient

NUM_CANCELS = 10
CANCEL_WAIT_S = 0.2
"""A call to a peer may swallow one cancellation; another one follows then."""
FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 10.0
WATCH_S = 1.0
CALLS_A_SILENCE = 4
"""How often the ledger is called within the time that it may be silent, where there is nothing to tell."""

logger = logging.getLogger(__name__)


class Feeder:
    """Feeds one engine from :meth:`start` until :meth:`drain` or :meth:`stop`. Made and used within one event loop."""

    def __init__(
        self,
        *,
        engine: str,
        peers: Peers,
        store: StoreClient,
        dataset: TokenIds,
        base_url: str,
        model: str,
        shape: HiddenShape,
        limits: Limits,
        silence_s: float,
        alive: Callable[[], bool],
        end_engine: Callable[[], None],
        slow_s: Callable[[int], float] = lambda num_tokens: 0.0,
        life: float | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """silence_s: how long the ledger may be out of reach. alive: whether the engine's process runs.

        end_engine: ends that process, called in a thread when the engine is given up. slow_s: how long an extraction of
        so many tokens is held up on purpose. life: see `LedgerLine`. transport: of HTTP, where not the network is to be
        used.
        """
        self._engine, self._limits, self._clock = engine, limits, clock
        self._ledger = LedgerLine(engine, life, peers)
        self._alive, self._end_engine, self._slow_s = alive, end_engine, slow_s
        self._requests = Requests(
            base_url=base_url,
            model=model,
            shape=shape,
            dataset=dataset,
            max_samples=limits.max_samples,
            transport=transport,
            clock=clock,
        )
        self._rule = Rule(limits.request_timeout_s, silence_s)
        self._conduct = Conduct(success_s=clock(), heard_s=clock())
        self._flights = InFlight(limits, clock)
        self._outbox = Outbox(self._ledger, store, clock, self._heard)
        self._tasks: set[asyncio.Task[None]] = set()
        self._arrivals = Arrivals(store, self._flights, self, clock)
        self._freed = Wake()
        self.depth = DepthWatch(engine, self._requests, self._flights, self._freed.set)
        """Knows the engine's load as well."""
        self._none_left = asyncio.Event()
        self._none_left.set()
        self._leasing: asyncio.Task[None] | None = None
        self._draining = False
        self.tokens = 0
        """Tokens whose hidden states have arrived in the store."""
        self.error = ""
        """What went wrong last, "" while all is well."""
        self.broken = ""
        """Why the engine is of no use any more: what it did, or an error of ours that ended a loop of the feeder."""

    @property
    def in_flight(self) -> int:
        """Leases that are neither ready nor lost yet."""
        return len(self._flights)

    @property
    def num_lost(self) -> int:
        """Samples that were lost since the start."""
        return self._conduct.num_lost

    @property
    def since_success_s(self) -> float:
        """Seconds since the last sample arrived; since the start, before the first."""
        return self._clock() - self._conduct.success_s

    def times_s(self) -> tuple[float, float]:
        """Seconds since the start with something in flight, and with nothing leased."""
        return self._flights.times_s()

    def start(self) -> None:
        """Begin to lease."""
        self._leasing = self._spawn(self._lease_loop())
        self._spawn(self._arrivals.run())
        self._spawn(self._outbox.run())
        self._spawn(self._watch())
        self._spawn(self.depth.run())

    async def drain(self) -> bool:
        """Lease no more, and let what is in flight end. Whether all of it was reported in time."""
        self._draining = True
        self._freed.set()
        if self._leasing:
            await asyncio.wait([self._leasing], timeout=LEASE_TIMEOUT_S)
        ended = await set_within(self._none_left, self._limits.request_timeout_s)
        return await self._outbox.flushed(REPORT_TIMEOUT_S) and ended

    async def stop(self) -> None:
        """End at once; what is in flight is left to the ledger, which leases it to others. Twice is fine."""
        self._draining = True
        for _ in range(NUM_CANCELS):
            if not self._tasks:
                break
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(list(self._tasks), timeout=CANCEL_WAIT_S)
        await self._requests.close()

    # -- leasing ---------------------------------------------------------------------------------------------------

    async def _lease_loop(self) -> None:
        while not self._draining:
            if not self._alive():
                await self._give_all_back("the engine's process has ended")
                return
            num_samples, num_tokens = self._flights.room()
            if not num_samples:
                await self._freed.wait(LEASE_WAIT_S)
            elif self._conduct.num_timeouts or self._conduct.num_refused:
                await self._lease_one_after_a_trial(num_tokens)
            else:
                await self._lease(num_samples, num_tokens)

    async def _lease(self, num_samples: int, num_tokens: int) -> None:
        """Ask for leases, and begin with those that are granted."""
        try:
            leases = await self._ledger.lease(num_samples, num_tokens)
        except PeerError as error:
            self.note(f"the ledger gives no leases: {error}")
            await asyncio.sleep(RETRY_S)
            return
        self._heard()
        if self.broken:
            return  # given up meanwhile; what was leased goes back when its time is over
        for flight in self._flights.begin(leases):
            self._none_left.clear()
            self._spawn(self._extract(flight))

    async def _lease_one_after_a_trial(self, num_tokens: int) -> None:
        """See whether an engine that has failed works again, ever less often, and then give it one sample.

        Each failure costs a sample an attempt, so the trial is made without one.
        """
        if self.in_flight:
            await self._freed.wait(LEASE_WAIT_S)
            return
        num_failures = self._conduct.num_timeouts + self._conduct.num_refused
        await asyncio.sleep(min(FIRST_PAUSE_S * 2.0 ** min(num_failures - 1, 10), LONGEST_PAUSE_S))
        begun_s, timeout_s = self._clock(), self._limits.request_timeout_s
        try:
            await self._requests.try_out(timeout_s)
        except (TimeoutError, EngineRefused) as error:
            blame: Blame = "refused" if isinstance(error, EngineRefused) else "timeout"
            self._conduct = self._conduct.failed(blame, begun_s, self._clock())
            self.note(str(error) or f"no answer within {timeout_s:g} s")
        else:
            await self._lease(1, num_tokens)

    # -- giving the engine up --------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        """Give the engine up when it is of no use any more."""
        called_s = self._clock()
        while not (reason := self._ledger.replaced or verdict(self._rule, self._conduct, self._clock())):
            if self._clock() - max(called_s, self._conduct.heard_s) > self._rule.silence_s / CALLS_A_SILENCE:
                called_s = self._clock()
                self._outbox.say_something()
            await asyncio.sleep(WATCH_S)
        self.broken = self.broken or reason
        await self._give_all_back(reason)
        await asyncio.to_thread(self._end_engine)

    async def _give_all_back(self, reason: str) -> None:
        """Lease no more, and return what is in flight; what was the engine's fault burns no sample's attempt."""
        self._draining = True
        keys = self._flights.keys()
        for key in keys:
            self._end(key)
        self._outbox.forget(keys)
        self.note(reason)
        try:
            await self._ledger.drop()
        except PeerError as error:
            self.note(f"{reason}; and the ledger could not be told: {error}")

    def _heard(self) -> None:
        self._conduct = self._conduct.heard(self._clock())

    # -- one sample ------------------------------------------------------------------------------------------------

    async def _extract(self, flight: Flight) -> None:
        """Have one sample extracted; when the engine has answered, the arrival loop takes over."""
        key = flight.lease.key
        try:
            await asyncio.sleep(self._slow_s(flight.lease.num_tokens))
            flight.num_bytes = await self._requests.extract(flight)
        except TimeoutError:
            # An engine whose puts wait for the store has no room for more requests.
            blame: Blame = "" if self._arrivals.failed_s >= flight.begun_s else "timeout"
            self.lose(key, f"no answer within {self._limits.request_timeout_s:g} s", blame)
        except EngineRefused as error:
            self.lose(key, str(error), "alive" if isinstance(error, RequestRejected) else "refused")
        except WrongData as error:
            self.lose(key, str(error), "wrong")
        except DataError as error:
            self.lose(key, str(error))
        else:
            self._conduct = self._conduct.answered()
            self._arrivals.expect()
            self._freed.set()

    # -- what became of it -----------------------------------------------------------------------------------------

    def arrived(self, flight: Flight) -> None:
        """Its object is in the store."""
        if self._end(flight.lease.key):
            self._conduct = self._conduct.succeeded(self._clock())
            self.tokens += flight.lease.num_tokens
            self.error = ""
            self._outbox.ready(flight.lease.key, flight.num_bytes)

    def lose(self, key: str, reason: str, blame: Blame = "", held_s: float = 0.0) -> None:
        """It is not to be had under this key. blame: what that says of the engine.

        held_s: how long the ledger is not told, so that another attempt does not follow, and fail, at once.
        """
        if not self._alive():
            self._freed.set()  # the lease loop gives everything back
        elif flight := self._end(key):
            self._conduct = self._conduct.lost(flight.lease.sample, blame, reason, flight.begun_s, self._clock())
            self.note(reason)
            self._outbox.lost(key, reason, held_s)

    def note(self, text: str) -> None:
        """Say what is wrong, once."""
        if text != self.error:
            logger.warning("%s: %s", self._engine, text)
        self.error = text

    def _end(self, key: str) -> Flight | None:
        """The flight, if it was in flight until now."""
        flight = self._flights.end(key)
        self._freed.set()
        if not self.in_flight:
            self._none_left.set()
        return flight

    def _spawn(self, coroutine: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.broken = self.broken or f"the feeder failed: {type(error).__name__}: {error}"
            logger.error("%s: %s", self._engine, self.broken, exc_info=error)
