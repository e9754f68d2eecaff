"""Deadlines for calls into a library that has none: each call runs in a thread, and its caller stops waiting in time.

A call that is given up goes on in its thread (a get from a stopped host returns after a minute) and may still write
into the caller's memory. So memory that such a call may write is remembered, and not lent out again before it ended.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from dspark_train.errors import StoreError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Span:
    """Bytes ``start .. end`` of this process's memory."""

    start: int
    end: int

    def overlaps(self, other: Span) -> bool:
        return self.start < other.end and other.start < self.end


@dataclass(eq=False)
class _Call(Generic[T]):
    run: Callable[[], T]
    writes: Sequence[Span]
    ended: threading.Event = field(default_factory=threading.Event)
    result: list[T] = field(default_factory=list)
    error: BaseException | None = None

    def work(self) -> None:
        try:
            self.result.append(self.run())
        except BaseException as error:  # noqa: BLE001 - raised again in the thread that waits
            self.error = error
        finally:
            self.ended.set()


class Deadlines:
    """Runs calls with one deadline each. Thread-safe."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._running: set[_Call[object]] = set()
        self._closed = False

    def run(self, what: str, call: Callable[[], T], *, writes: Sequence[Span] = (), timeout_s: float = 0.0) -> T:
        """What ``call`` returns. writes: memory it writes; an abandoned call writing there is waited for first.

        timeout_s: instead of the usual deadline. Raises what the call raised, or StoreError, "what" first, when it
        takes longer.
        """
        limit_s = timeout_s or self._timeout_s
        deadline_s = time.monotonic() + limit_s
        if not self.settle(writes, limit_s):
            raise StoreError(f"{what}: an earlier read into the same memory has not ended within {limit_s:g} s")
        job: _Call[object] = _Call(call, writes)
        with self._lock:
            if self._closed:
                raise StoreError(f"{what}: the client is closed")
            self._running.add(job)
        threading.Thread(target=self._work, args=(job,), name="store-call", daemon=True).start()
        if not job.ended.wait(max(0.0, deadline_s - time.monotonic())):
            raise StoreError(f"{what}: no answer within {limit_s:g} s; the owner of the data, or the master, hangs")
        if job.error is not None:
            raise job.error
        return job.result[0]  # type: ignore[return-value]

    def settle(self, spans: Sequence[Span], timeout_s: float) -> bool:
        """Whether no call that may write into ``spans`` is left within ``timeout_s``."""
        with self._lock:
            held = [job for job in self._running if any(a.overlaps(b) for a in job.writes for b in spans)]
        return _all_end(held, timeout_s)

    def close(self, timeout_s: float) -> bool:
        """Refuse calls from now on. Whether none is left within ``timeout_s``."""
        with self._lock:
            self._closed = True
            held = list(self._running)
        return _all_end(held, timeout_s)

    def _work(self, job: _Call[object]) -> None:
        job.work()
        with self._lock:
            self._running.discard(job)


def _all_end(calls: Sequence[_Call[object]], timeout_s: float) -> bool:
    deadline_s = time.monotonic() + timeout_s
    return all(call.ended.wait(max(0.0, deadline_s - time.monotonic())) for call in calls)
