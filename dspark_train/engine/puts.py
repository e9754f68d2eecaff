"""Puts samples and markers into the store for an engine: hard-pinned, directed, retried. Needs neither vLLM nor torch.

Shared by the connector inside vLLM and by the stand-in, so that both leave the same objects. The one writer thread of
an engine must not stand still because the owner of one segment died: a transfer is tried again for a moment only, and
after that nothing is put into that segment for a while.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Any

from dspark_train.engine.marker import Marker, marker_key
from dspark_train.store.on_mooncake import pinned
from dspark_train.store.statuses import PASSING, TRANSFER_FAILED, SegmentLost, describe_status, status_error

PUT_RETRY_S = 15.0
"""For how long a put is tried again where the store is full, or its master away. Twice that, for sample and marker, is
less than a request may take."""
TRANSFER_RETRY_S = 2.0
"""For how long a put is tried again whose transfer failed."""
SHUN_S = 30.0
"""How long nothing is put into a segment whose owner does not take it."""
FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 1.0
TRANSFER_TIMEOUTS = {"MC_TCP_STATUS_TIMEOUT_SEC": "5", "MC_TCP_PROGRESS_TIMEOUT_SEC": "5"}
"""Mooncake's own deadlines for an owner that has stopped. Without them a put waits for it for a minute, spinning."""


def limit_transfers() -> None:
    """Have Mooncake give up on a stopped owner soon; what the environment says already is kept."""
    for name, value in TRANSFER_TIMEOUTS.items():
        os.environ.setdefault(name, value)


class Puts:
    """The puts of one engine through one native client. Thread-safe."""

    def __init__(self, native: Any, clock: Callable[[], float] = time.monotonic) -> None:
        self._native, self._clock = native, clock
        self._lock = threading.Lock()
        self._shunned_until_s: dict[str, float] = {}
        self._good: dict[str, None] = {}
        """Segments that took something, the last one last."""

    def sample(self, key: str, segment: str, address: int, num_bytes: int) -> None:
        """Put what lies at ``address``, in a buffer registered with the native client.

        Raises StoreFull, SegmentLost where the owner of ``segment`` takes nothing, StoreError.
        """
        config = pinned(segment)
        self._put(key, segment, lambda: int(self._native.put_from(key, address, num_bytes, config)))

    def marker(self, key: str, segment: str, marker: Marker) -> None:
        """Put the marker that says why there is no sample ``key``: elsewhere if ``segment`` is shunned.

        Where no other segment is known the master chooses one. Raises StoreFull, SegmentLost, StoreError.
        """
        name, data, target = marker_key(key), marker.encode(), self._marker_segment(segment)
        config = pinned(target)
        self._put(name, target, lambda: int(self._native.put(name, data, config)))

    def _marker_segment(self, segment: str) -> str:
        with self._lock:
            return next((name for name in (segment, *reversed(self._good)) if self._open(name)), "")

    def _open(self, segment: str) -> bool:
        return self._clock() >= self._shunned_until_s.get(segment, 0.0)

    def _put(self, key: str, segment: str, put: Callable[[], int]) -> None:
        with self._lock:
            if not self._open(segment):
                left_s = self._shunned_until_s[segment] - self._clock()
                raise SegmentLost(f"put {key}: segment {segment or 'any'} took nothing; tried again in {left_s:.0f} s")
        status = self._retried(put)
        with self._lock:
            if not status:
                self._good.pop(segment, None)
                self._good[segment] = None
                self._shunned_until_s.pop(segment, None)
            elif status == TRANSFER_FAILED:
                self._good.pop(segment, None)
                self._shunned_until_s[segment] = self._clock() + SHUN_S
                where = f"segment {segment}" if segment else "the segment that the master chose"
                raise SegmentLost(f"put {key}: {where}: {describe_status(status)}; is its owner alive?")
        if status:
            raise status_error("put", key, status)

    def _retried(self, put: Callable[[], int]) -> int:
        """Put until it works, as long as what fails may pass. Returns the last status."""
        began_s, pause_s = self._clock(), FIRST_PAUSE_S
        while status := put():
            limit_s = TRANSFER_RETRY_S if status == TRANSFER_FAILED else PUT_RETRY_S
            if status not in PASSING or self._clock() + pause_s > began_s + limit_s:
                return status
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        return 0
