"""The process that is a local Ray's head: starts it, says where it is, and ends with it. Run by `keeper.py`."""

from __future__ import annotations

import argparse
import ctypes
import os
import signal
import threading
from pathlib import Path

import psutil

from dspark_train.cluster.connect import LOOPBACK_ENV
from dspark_train.cluster.processes import is_alive

OBJECT_STORE_BYTES = 100 << 20
"""Only ids, sizes and keys travel through Ray: near its smallest store."""
PR_SET_PDEATHSIG = 1
VITAL = ("gcs_server", "raylet")
"""Processes without which this Ray is dead. Ray itself notices the end of the first only after a minute."""
LOOK_EVERY_S = 0.5
LOCAL_ENV = {
    **LOOPBACK_ENV,
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    # Ray's own killer ends whichever worker it likes at 95 % of memory, such as the ledger; the kernel's choice, the
    # largest process, is the better one.
    "RAY_memory_monitor_refresh_ms": "0",
}


def main() -> None:
    """Start the head and wait for SIGTERM, or for the keeper's death."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--temp-dir", required=True)
    parser.add_argument("--num-cpus", type=int, required=True)
    parser.add_argument("--address-file", type=Path, required=True)
    args = parser.parse_args()
    _die_with_parent()
    os.environ.update(LOCAL_ENV)
    os.environ.pop("RAY_ADDRESS", None)
    from dspark_train.cluster import on_ray

    address = on_ray.start_head(args.temp_dir, args.num_cpus, OBJECT_STORE_BYTES)
    over = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: over.set())  # after ray.init, which sets its own
    beside = args.address_file.with_suffix(".new")
    beside.write_text(address, encoding="utf-8")
    os.replace(beside, args.address_file)
    vital = [child for child in psutil.Process().children() if child.name() in VITAL]
    while not over.wait(LOOK_EVERY_S):
        if dead := [process.name() for process in vital if not is_alive(process.pid)]:
            print(f"head: {' and '.join(dead)} died", flush=True)
            os._exit(1)  # leaving in order would wait a minute for the dead; the keeper ends the rest
    on_ray.stop_head()


def _die_with_parent() -> None:
    parent = os.getppid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:
        raise SystemExit("the keeper of this Ray is gone")


if __name__ == "__main__":
    main()
