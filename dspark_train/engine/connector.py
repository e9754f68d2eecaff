"""The connector that vLLM loads: puts a request's hidden states under the key, and into the segment, that it names.

Runs inside vLLM's processes; built on hs-connectors', whose extraction, finite check and object layout it keeps. What
it adds: key and preferred segment out of the request's ``kv_transfer_params``, hard pins, retries, CPU, and markers
that tell a full store from a fault. Requests without a key, and requests that were given up, put nothing.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import torch
from hs_connectors.mooncake_hidden_states_connector import MooncakeHiddenStatesConnector
from hs_connectors.mooncake_store import MooncakeHiddenStatesStore, MooncakeStoreConfig
from vllm.v1.request import RequestStatus

from dspark_train.engine.marker import Marker, kind_of
from dspark_train.engine.puts import Puts, limit_transfers

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.request import Request

_WHOLE = (RequestStatus.FINISHED_STOPPED, RequestStatus.FINISHED_LENGTH_CAPPED, RequestStatus.FINISHED_REPETITION)


class PinnedStore(MooncakeHiddenStatesStore):  # type: ignore[misc]
    """hs-connectors' store whose puts are hard-pinned, directed and retried. Same bytes under the same manifest."""

    _puts: Puts | None = None

    def setup(self) -> PinnedStore:
        """Join the store. Raises RuntimeError."""
        limit_transfers()
        super().setup()
        self._puts = Puts(self._require_store())
        return self

    def put_sample(self, transfer_manifest: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
        """Put one sample from this thread's registered buffer. Raises StoreFull, StoreError."""
        num_bytes = transfer_manifest["metadata"]["total_aligned_bytes"]
        buffer = self._staging_buffer("put", num_bytes)
        for name, spec in transfer_manifest["tensors"].items():
            region = buffer[spec["offset"] : spec["offset"] + spec["nbytes"]]
            region.view(tensors[name].dtype).view(tuple(spec["shape"])).copy_(tensors[name])
        key, segment = transfer_manifest["handle"], transfer_manifest["segment"]
        self._require_puts().sample(key, segment, buffer.data_ptr(), num_bytes)

    def put_error(self, transfer_manifest: dict[str, Any], error: str) -> None:
        """Put a marker that says why there is no sample; called while that is handled. Raises StoreError."""
        marker = Marker(kind_of(sys.exception()), error)
        self._require_puts().marker(transfer_manifest["handle"], transfer_manifest["segment"], marker)

    def _require_puts(self) -> Puts:
        assert self._puts, "set up first"
        return self._puts


class DSparkConnector(MooncakeHiddenStatesConnector):  # type: ignore[misc]
    """Extracts what requests with ``kv_transfer_params={"key": ..., "segment": ...}`` ask for."""

    def __init__(self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        config = self._kv_transfer_config.get_from_extra_config("mooncake", {})
        self._store: Any = PinnedStore(MooncakeStoreConfig.from_dict(config))

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        """As inherited. A store that cannot be reached ends the start here, not the first request."""
        super().register_kv_caches(kv_caches)
        if self._is_tp_rank_zero:
            self._ensure_store()

    def request_finished(self, request: Request, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        """Have the request's hidden states put, if it has a key and ran to its end; else its blocks are just freed.

        Of a request that was given up only some blocks may be filled: putting it would be putting garbage.
        """
        params = request.kv_transfer_params or {}
        if not params.get("key") or request.status not in _WHOLE:
            self._request_keys.pop(request.request_id, None)
            return True, None
        self._request_keys[request.request_id] = params["key"]
        delay, manifest = super().request_finished(request, block_ids)
        manifest["segment"] = params.get("segment", "")
        return delay, manifest

    def _device(self) -> Any:
        return super()._device() if torch.accelerator.is_available() else torch.cpu
