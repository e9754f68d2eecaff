"""The connector that vLLM loads where the store is a directory: the other one's extraction, and files instead of puts.

vLLM's own ExampleHiddenStatesConnector writes the same files, but on CUDA alone, and answers before they are whole:
docs/decisions/files.md.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from dspark_train.engine.connector import DSparkConnector
from dspark_train.engine.disk_puts import DiskPuts
from dspark_train.engine.extract import HiddenShape
from dspark_train.engine.marker import Marker, kind_of

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
    from vllm.v1.kv_cache_interface import KVCacheConfig


class FileStore:
    """What the connector puts into: a directory, under the interface of hs-connectors' store."""

    def __init__(self, root: str) -> None:
        self._root = Path(root)
        self._puts: DiskPuts | None = None

    def setup(self) -> FileStore:
        """Make the directory. Raises StoreError where it cannot be used."""
        self._puts = DiskPuts(self._root)
        return self

    def put_sample(self, transfer_manifest: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
        """Write one sample's file. Raises StoreFull, StoreError."""
        hidden = tensors["hidden_states"].to("cpu").contiguous()
        _, num_layers, hidden_size = hidden.shape
        shape = HiddenShape(num_layers, hidden_size, str(hidden.dtype).removeprefix("torch."))  # type: ignore[arg-type]
        data = hidden.view(-1).view(torch.uint8).numpy()
        self._require_puts().sample(transfer_manifest["handle"], data, shape, tensors["token_ids"].cpu().numpy())

    def put_error(self, transfer_manifest: dict[str, Any], error: str) -> None:
        """Write a marker that says why there is no sample; called while that is handled. Raises StoreError."""
        marker = Marker(kind_of(sys.exception()), error)
        self._require_puts().marker(transfer_manifest["handle"], transfer_manifest["segment"], marker)

    def _require_puts(self) -> DiskPuts:
        assert self._puts, "set up first"
        return self._puts


class DSparkDiskConnector(DSparkConnector):
    """Writes what requests with ``kv_transfer_params={"key": ...}`` ask for."""

    def __init__(self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self._store = FileStore(self._kv_transfer_config.get_from_extra_config("disk", {})["root"])
