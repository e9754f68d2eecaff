"""Puts samples and markers into a directory for an engine, as `puts.py` does into Mooncake.

Needs neither vLLM nor torch. A full disk is tried again for a while: room comes with every step that is trained.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dspark_train.engine.extract import HiddenShape
from dspark_train.engine.marker import Marker, marker_key
from dspark_train.engine.puts import FIRST_PAUSE_S, LONGEST_PAUSE_S, PUT_RETRY_S
from dspark_train.errors import StoreFull
from dspark_train.store.on_disk import DiskClient, disk_error, sample_path
from dspark_train.store.sample_file import write_sample


class DiskPuts:
    """The puts of one engine below ``root``. Thread-safe."""

    def __init__(self, root: Path, clock: Callable[[], float] = time.monotonic) -> None:
        """Raises StoreError where the directory cannot be used."""
        self._root, self._client, self._clock = root, DiskClient(root), clock

    def sample(
        self, key: str, hidden: npt.NDArray[np.uint8], shape: HiddenShape, token_ids: npt.NDArray[np.int64]
    ) -> None:
        """Put one sample. hidden: its bytes [tokens, layers, hidden]. Raises StoreFull, StoreError."""
        path, sizes = sample_path(self._root, key), (len(token_ids), shape.num_layers, shape.hidden_size)

        def put() -> None:
            try:
                write_sample(path, hidden, sizes, shape.dtype, token_ids)
            except OSError as error:
                raise disk_error("put", key, error) from error

        self._retried(put)

    def marker(self, key: str, segment: str, marker: Marker) -> None:
        """Put the marker that says why there is no sample ``key``. Raises StoreFull, StoreError."""
        self._retried(lambda: self._client.put(marker_key(key), marker.encode(), segment))

    def _retried(self, put: Callable[[], None]) -> None:
        began_s, pause_s = self._clock(), FIRST_PAUSE_S
        while True:
            try:
                return put()
            except StoreFull:
                if self._clock() + pause_s > began_s + PUT_RETRY_S:
                    raise
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
