"""A client of the store that a topology names: Mooncake, or a directory."""

from __future__ import annotations

from pathlib import Path

from dspark_train.plan.vllm_argv import store_root
from dspark_train.store.on_disk import DiskClient
from dspark_train.store.protocol import StoreClient
from dspark_train.topology.schema import Store


def connect(store: Store, *, owner: str, host: str, master: str, segment_bytes: int, timeout_s: float) -> StoreClient:
    """owner: the member that connects; host: its node's address; master: ``address:port``, of Mooncake alone.

    segment_bytes: of a segment of its own, 0 for none. Raises StoreError.
    """
    if store.protocol == "disk":
        return DiskClient(Path(store_root(store.path)), owner, segment_bytes)
    from dspark_train.store import on_mooncake

    return on_mooncake.connect(store, host=host, master=master, segment_bytes=segment_bytes, timeout_s=timeout_s)
