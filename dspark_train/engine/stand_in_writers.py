"""What a stand-in puts: samples computed from their token ids, into Mooncake or a directory. For one thread each."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from dspark_train.engine.disk_puts import DiskPuts
from dspark_train.engine.extract import HiddenShape
from dspark_train.engine.marker import Marker, kind_of
from dspark_train.engine.puts import Puts
from dspark_train.engine.stand_in_states import bfloat16_bits
from dspark_train.errors import StoreError

GRANULE_BYTES = 16 * 2**20
logger = logging.getLogger(__name__)


class States(Protocol):
    """Where hidden states come from."""

    def of(self, token_ids: Sequence[int]) -> npt.NDArray[np.float32]: ...


class MarkerPuts(Protocol):
    """Where markers are put."""

    def marker(self, key: str, segment: str, marker: Marker) -> None: ...


class Writer(ABC):
    """Computes samples and puts them: for one thread. How they are put is for those who inherit."""

    def __init__(self, states: States, shape: HiddenShape, markers: MarkerPuts) -> None:
        self.shape, self.states, self._markers = shape, states, markers

    @abstractmethod
    def put(self, token_ids: Sequence[int], key: str, segment: str) -> None:
        """Compute and put one sample. Raises StoreError."""

    def write(self, token_ids: Sequence[int], key: str, segment: str) -> None:
        """Put one sample, or a marker that says why not."""
        try:
            self.put(token_ids, key, segment)
        except StoreError as error:
            self.fail(key, segment, Marker(kind_of(error), str(error)))

    def fail(self, key: str, segment: str, marker: Marker) -> None:
        """Put the marker that says why there is no sample."""
        logger.warning("%s: %s", key, marker.text)
        try:
            self._markers.marker(key, segment, marker)
        except StoreError as error:
            logger.warning("%s: there is no marker either: %s", key, error)

    def _states_of(self, token_ids: Sequence[int]) -> npt.NDArray[np.uint8]:
        hidden = self.states.of(token_ids)
        data = hidden if self.shape.dtype == "float32" else bfloat16_bits(hidden)
        return data.reshape(-1).view(np.uint8)


class DiskWriter(Writer):
    """Puts files into a directory."""

    def __init__(self, root: Path, states: States, shape: HiddenShape) -> None:
        self._puts = DiskPuts(root)
        super().__init__(states, shape, self._puts)

    def put(self, token_ids: Sequence[int], key: str, segment: str) -> None:
        """Write one sample's file. Raises StoreError."""
        self._puts.sample(key, self._states_of(token_ids), self.shape, np.asarray(token_ids, dtype=np.int64))


class SampleWriter(Writer):
    """Puts objects into Mooncake, from one staging buffer."""

    def __init__(self, native: Any, states: States, shape: HiddenShape) -> None:
        self._native, self._puts = native, Puts(native)
        super().__init__(states, shape, self._puts)
        self._staging = np.empty(0, dtype=np.uint8)

    def put(self, token_ids: Sequence[int], key: str, segment: str) -> None:
        """Put one sample. Raises StoreError."""
        num_bytes = self._fill(token_ids)
        self._puts.sample(key, segment, self._staging.ctypes.data, num_bytes)

    def _fill(self, token_ids: Sequence[int]) -> int:
        layout = self.shape.layout(len(token_ids))
        self._grow(layout.total_bytes)
        self._staging[: layout.hidden_bytes] = self._states_of(token_ids)
        tokens = np.asarray(token_ids, dtype=np.int64).view(np.uint8)
        self._staging[layout.tokens_offset :][: layout.tokens_bytes] = tokens
        return layout.total_bytes

    def _grow(self, num_bytes: int) -> None:
        if self._staging.nbytes >= num_bytes:
            return
        if self._staging.nbytes:
            self._native.unregister_buffer(self._staging.ctypes.data)
        self._staging = np.zeros(-(-num_bytes // GRANULE_BYTES) * GRANULE_BYTES, dtype=np.uint8)
        status = self._native.register_buffer(self._staging.ctypes.data, self._staging.nbytes)
        if status:
            raise StoreError(f"registering {self._staging.nbytes} bytes: status {status}")
