"""Reaching a run's cluster from outside of it. Imports ray only when called, once what ray reads at import is set."""

from __future__ import annotations

import ipaddress
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from dspark_train.errors import ClusterError
from dspark_train.plan.run_layout import RunLayout

if TYPE_CHECKING:
    from dspark_train.cluster.protocol import Cluster

LOOPBACK_ENV = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
"""Ray replaces a loopback address by the machine's outer one, except where it believes that there can be no other node
(as on laptops): then everything binds 127.0.0.1. There is no option for it."""

PATIENCE_ENV = {"RAY_NUM_REDIS_GET_RETRIES": "5"}
"""How often connecting is tried, a second apart and without a word, where the head refuses (20 by default)."""


def ray_env(address: str, token: Path | None) -> dict[str, str]:
    """The environment that a process needs before it imports ray, to be part of the cluster at ``address``."""
    # Without this, a driver under `uv run` would have every worker build an environment of its own.
    env = {"RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0", "RAY_USAGE_STATS_ENABLED": "0", **PATIENCE_ENV}
    if token is not None:
        env |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)}
    if is_loopback(address):
        env |= LOOPBACK_ENV
    return env


def is_loopback(address: str) -> bool:
    """Whether "host:port" is only reachable from this machine."""
    host = address.rpartition(":")[0].strip("[]") or address
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def connect(address: str, namespace: str, token: Path | None = None) -> Cluster:
    """Connect to the Ray cluster at ``address`` ("host:port" or "auto"), to see the members of ``namespace``.

    token: file with the cluster's token; None leaves it to Ray's own rules. A process is connected once at a time.
    Raises ClusterError if nobody answers there.
    """
    env = ray_env(address, token)
    changed = {key for key, value in env.items() if os.environ.get(key) != value}
    if changed and "ray" in sys.modules:
        raise ClusterError(f"ray was imported before {', '.join(sorted(changed))} could be set: connect first")
    os.environ.update(env)
    from dspark_train.cluster import on_ray

    return on_ray.attach(address, namespace)


def connect_run(layout: RunLayout) -> Cluster:
    """Connect to the cluster of a run, as its `cluster.json` says. Raises ClusterError."""
    try:
        facts = json.loads(layout.cluster.read_text(encoding="utf-8"))
        address, token = str(facts["address"]), facts.get("token_path")
    except (OSError, ValueError, KeyError) as error:
        raise ClusterError(f"{layout.cluster} does not say where the run's Ray cluster is ({error})") from error
    return connect(address, namespace_of(layout), Path(token) if token else None)


def namespace_of(layout: RunLayout) -> str:
    """The Ray namespace that holds the members of a run."""
    return f"dspark-{layout.name}"
