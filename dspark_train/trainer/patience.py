"""Waiting out the ledger or the store not answering: again and again, in growing pauses, up to a limit or the end."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from dspark_train.errors import DSparkError

FIRST_PAUSE_S = 0.1
MAX_PAUSE_S = 5.0
LOOK_S = 0.05
"""How often a call that may be left behind looks whether it is to be."""
T = TypeVar("T")


class Patience:
    """Tries calls until they succeed, the limit is reached, or the rank is to end."""

    def __init__(self, limit_s: float, stopping: threading.Event, log: logging.Logger) -> None:
        """limit_s: the longest outage that is waited out."""
        self._limit_s, self._stopping, self._log = limit_s, stopping, log
        self.fault = ""
        """What is being waited out now, "" where all is well."""

    def call(self, whom: str, expected: type[DSparkError], attempt: Callable[[], T]) -> T | None:
        """``attempt()``, repeated while it raises ``expected``; None where the rank is to end meanwhile.

        Raises the last error once the outage has lasted longer than the limit, and everything else at once.
        """
        began_s, pause_s = time.monotonic(), FIRST_PAUSE_S
        while not self._stopping.is_set():
            try:
                result = attempt()
            except expected as error:
                lasted_s = time.monotonic() - began_s
                if lasted_s > self._limit_s:
                    raise
                self.fault = f"{whom} has not answered for {lasted_s:.0f} s: {error}"
                self._log.warning("%s; trying again in %.1f s", self.fault, pause_s)
                self._stopping.wait(pause_s)
                pause_s = min(2 * pause_s, MAX_PAUSE_S)
                continue
            self.fault = ""
            return result
        return None


class Errand:
    """Makes calls in a thread of its own, and leaves one behind that is not answered when the rank is to end.

    One thread for all, since transports keep a connection a thread. End it with :meth:`close`.
    """

    def __init__(self, ended: threading.Event) -> None:
        self._ended = ended
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="errand", daemon=True).start()

    def call(self, call: Callable[[], T]) -> T | None:
        """``call()``, or None once ``ended`` is set. Raises what it raises."""
        outcome: Future[T] = Future()

        def make() -> None:
            try:
                outcome.set_result(call())
            except BaseException as error:  # noqa: BLE001 - raised where the call was asked for
                outcome.set_exception(error)

        self._calls.put(make)
        while True:
            try:
                return outcome.result(LOOK_S)
            except TimeoutError:
                if outcome.done():
                    raise
                if self._ended.is_set():
                    return None

    def close(self) -> None:
        """Let the thread end, once it has its last answer. Twice is fine."""
        self._calls.put(None)

    def _run(self) -> None:
        while (make := self._calls.get()) is not None:
            make()
