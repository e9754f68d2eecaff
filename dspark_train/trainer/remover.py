"""Removes trained samples from the store, in batches, off the training thread."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence

from dspark_train.errors import PeerError, StoreError
from dspark_train.store.protocol import StoreClient

BATCH_KEYS = 256
MAX_TRIES = 5
RETRY_S = 0.5


_Batch = tuple[list[str], Callable[[list[str]], None] | None]


class Remover:
    """A thread with a queue of keys. Close it with :meth:`stop`, before the store client."""

    def __init__(self, store: StoreClient, log: logging.Logger) -> None:
        self._store, self._log = store, log
        self._queue: queue.Queue[_Batch | None] = queue.Queue()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="remove", daemon=True)
        self._thread.start()

    def remove(self, keys: Sequence[str], then: Callable[[list[str]], None] | None = None) -> None:
        """Remove these soon; returns at once. then: called with the keys once they are gone."""
        for first in range(0, len(keys), BATCH_KEYS):
            self._queue.put((list(keys[first : first + BATCH_KEYS]), then))

    def stop(self, timeout_s: float) -> bool:
        """Remove what is queued, then end; whether that happened in time. Twice is fine."""
        self._stopping.set()
        self._queue.put(None)
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (batch := self._queue.get()) is not None:
            self._remove(*batch)

    def _remove(self, keys: list[str], then: Callable[[list[str]], None] | None) -> None:
        for attempt in range(1, MAX_TRIES + 1):
            try:
                self._store.remove(keys)
                if then is not None:
                    then(keys)
                return
            except (StoreError, PeerError) as error:
                self._log.warning("removing %d samples, try %d of %d: %s", len(keys), attempt, MAX_TRIES, error)
                if attempt < MAX_TRIES and not self._stopping.is_set():
                    time.sleep(RETRY_S * attempt)
        self._log.error("%d samples stay in the store, the first is %s", len(keys), keys[0])
