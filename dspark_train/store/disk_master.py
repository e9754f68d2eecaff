"""The member "master" of a run whose store is a directory: tells how much is in it, and leaves none of it behind."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dspark_train.errors import StoreError
from dspark_train.peers import Peers
from dspark_train.plan.run_layout import RunLayout
from dspark_train.plan.vllm_argv import store_root
from dspark_train.schedule.leases import key_prefix
from dspark_train.store.on_disk import objects, remove_objects
from dspark_train.topology.resolve import Resolved


class DiskMaster:
    """Owns the run's own directory below ``store.path``; what is in it at the start is of a run that died."""

    def __init__(self, run_dir: str, peers: Peers, name: str = "master") -> None:
        layout = RunLayout(Path(run_dir))
        self._resolved = Resolved.model_validate_json(layout.resolved.read_text(encoding="utf-8"))
        self._root = Path(store_root(self._resolved.topology.store.path))
        self._prefix = key_prefix(layout.name, "")
        self._state = "starting"

    def reserve_ports(self, wanted: Mapping[str, int] | None = None) -> dict[str, int]:
        """It has no ports."""
        return {}

    def start(self, hosts: Mapping[str, str], ports: Mapping[str, int]) -> dict[str, Any]:
        """Clear what an earlier life of the run has left. Returns {"pid"}. Raises StoreError."""
        try:
            self._root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"store.path: {self._root} cannot be made: {error}") from error
        remove_objects(self._root, self._prefix)
        self._state = "ready"
        return {"pid": os.getpid()}

    def status(self) -> dict[str, Any]:
        """{"state": "starting|ready|stopped", "pid", "error", "used_bytes", "capacity_bytes", "num_keys",
        "num_evicted"}; capacity_bytes: what is used, and what the disk has free beside it.
        """
        used_bytes, num_keys, free_bytes, error = 0, 0, 0, ""
        try:
            for path in objects(self._root, self._prefix):
                used_bytes, num_keys = used_bytes + _size(path), num_keys + 1
            found = os.statvfs(self._root)
            free_bytes = found.f_bavail * found.f_frsize
        except OSError as problem:
            error = f"{self._root} cannot be read: {problem}"
        figures = {"used_bytes": used_bytes, "capacity_bytes": used_bytes + free_bytes, "num_keys": num_keys}
        return {"state": self._state, "pid": os.getpid(), "error": error, **figures, "num_evicted": 0}

    def stop(self, grace_s: float) -> None:
        """Remove what is left of the run's objects; twice is fine."""
        remove_objects(self._root, self._prefix)
        self._state = "stopped"


def _size(path: Path) -> int:
    """Bytes of a file; 0 of one that has just been removed."""
    try:
        return path.lstat().st_size
    except FileNotFoundError:
        return 0
