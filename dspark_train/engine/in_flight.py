"""What a feeder has in flight: leases from their grant until their object is there or given up. No I/O here.

Also the times that the balance works with: busy while anything is in flight, blocked while nothing was leased.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from dspark_train.schedule.messages import Lease


@dataclass(frozen=True, slots=True)
class Limits:
    """How much one engine may have in flight, and how long one extraction may take."""

    max_samples: int
    max_tokens: int
    longest_tokens: int
    """Tokens of the longest sample there can be: less room than that is not worth asking for."""
    request_timeout_s: float


@dataclass(slots=True)
class Flight:
    """One lease in flight. num_bytes: of the object, known once the engine has answered; 0 before."""

    lease: Lease
    begun_s: float
    deadline_s: float
    num_bytes: int = 0


class InFlight:
    """The flights, and how long there were any. ``clock`` gives seconds."""

    depth: int
    """Requests that the engine may have at a time, as its scheduler takes them; at first, and at most, the limit."""

    def __init__(self, limits: Limits, clock: Callable[[], float]) -> None:
        self.depth = limits.max_samples
        self._limits, self._clock = limits, clock
        self._flights: dict[str, Flight] = {}
        self._num_tokens = 0
        self._since_s = clock()
        self._busy_s = self._blocked_s = 0.0

    def __len__(self) -> int:
        return len(self._flights)

    def __contains__(self, key: str) -> bool:
        return key in self._flights

    @property
    def num_given(self) -> int:
        """Requests that the engine has not answered."""
        return sum(not flight.num_bytes for flight in self._flights.values())

    def room(self) -> tuple[int, int]:
        """Samples and tokens to ask the ledger for; (0, 0) where the longest sample would not fit."""
        tokens = self._limits.max_tokens - self._num_tokens
        samples = min(self._limits.max_samples - len(self._flights), self.depth - self.num_given)
        if self._flights and tokens < self._limits.longest_tokens:
            return 0, 0
        return (samples, max(tokens, self._limits.longest_tokens)) if samples > 0 else (0, 0)

    def begin(self, leases: Iterable[Lease]) -> list[Flight]:
        """Add leases granted now."""
        self._count_time()
        now_s = self._clock()
        added = [Flight(x, now_s, now_s + min(x.lease_s, self._limits.request_timeout_s)) for x in leases]
        for flight in added:
            self._flights[flight.lease.key] = flight
            self._num_tokens += flight.lease.num_tokens
        return added

    def end(self, key: str) -> Flight | None:
        """Take a flight out; None where it had ended before."""
        self._count_time()
        flight = self._flights.pop(key, None)
        if flight:
            self._num_tokens -= flight.lease.num_tokens
        return flight

    def answered(self) -> list[Flight]:
        """Those whose object the engine is putting."""
        return [flight for flight in self._flights.values() if flight.num_bytes]

    def keys(self) -> list[str]:
        return list(self._flights)

    def times_s(self) -> tuple[float, float]:
        """Seconds busy and blocked since the beginning."""
        self._count_time()
        return self._busy_s, self._blocked_s

    def _count_time(self) -> None:
        now_s = self._clock()
        if self._flights:
            self._busy_s += now_s - self._since_s
        else:
            self._blocked_s += now_s - self._since_s
        self._since_s = now_s
