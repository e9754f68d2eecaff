"""A store's master for the length of a measurement, on free ports of this machine."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from dspark_train.store.master_process import MasterProcess
from dspark_train.store.ports import reserve_ports

LOOPBACK = "127.0.0.1"
START_TIMEOUT_S = 60.0
STOP_GRACE_S = 5.0


@contextlib.contextmanager
def running_master(log: Path) -> Iterator[MasterProcess]:
    """A master that evicts nothing; ended on leaving. Raises StartError."""
    ports = reserve_ports(["rpc", "metrics"])
    rpc, metrics = ports["rpc"].port, ports["metrics"].port
    argv = [
        "mooncake_master",
        f"--rpc_address={LOOPBACK}",
        f"--rpc_port={rpc}",
        f"--metrics_host={LOOPBACK}",
        f"--metrics_port={metrics}",
        "--eviction_high_watermark_ratio=1.0",
        "--eviction_ratio=0.0",
        "--allow_evict_soft_pinned_objects=false",
        "--logtostderr=true",
    ]
    master = MasterProcess(argv, {}, log, f"{LOOPBACK}:{rpc}", f"{LOOPBACK}:{metrics}")
    try:
        master.start(START_TIMEOUT_S)
        yield master
    finally:
        master.stop(STOP_GRACE_S)
        for lock in ports.values():
            lock.release()
