"""Nodes of a cluster as the launchers start them: two on this machine, looked at, and ended by their pid files."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dspark_train.cluster.node import ray_argv, stop
from dspark_train.cluster.processes import marked_processes
from dspark_train.store.ports import reserve_ports

NODE = (sys.executable, "-m", "dspark_train.cluster.node")
ADDRESSES = ("127.0.0.2", "127.0.0.3")
SHARED_MACHINE = ("--num-cpus=1", "--min-worker-port=0", "--max-worker-port=0", "--dashboard-agent-listen-port=0")
TIMEOUT_S = 500.0


def test_a_head_has_its_ports_side_by_side_and_a_worker_carries_its_labels() -> None:
    head = ray_argv("head", "10.0.0.1", "10.0.0.1:6400", "/tmp/d", {}, ())
    assert {"--head", "--port=6400", "--include-dashboard=false", "--ray-client-server-port=6401"} <= set(head)
    worker = ray_argv("worker", "10.0.0.2", "10.0.0.1:6400", "/tmp/d", {"b": "2", "ray.io/gpu-domain": "a.0"}, ("--x",))
    assert {"--address=10.0.0.1:6400", "--node-ip-address=10.0.0.2"} <= set(worker)
    assert worker[worker.index("--labels") + 1] == "b=2,ray.io/gpu-domain=a.0"
    assert worker[-1] == "--x"


def test_a_node_that_is_gone_needs_no_stop(tmp_path: Path) -> None:
    stop(tmp_path / "none.pid")
    path = tmp_path / "dead.pid"
    path.write_text(json.dumps({"pid": os.getpid(), "started_at": 0.0}))  # the id of another process by now
    stop(path)
    assert not path.exists()


@pytest.fixture
def cluster() -> Iterator[tuple[str, dict[str, str], Path]]:
    """A head and a worker: its address, the environment of those who join, the nodes' directory."""
    root = Path(tempfile.mkdtemp(prefix="dsn", dir="/tmp"))
    mark = uuid.uuid4().hex
    lock = reserve_ports(["head"])["head"]
    head = f"{ADDRESSES[0]}:{lock.port}"
    token = root / "token"
    token.write_text(uuid.uuid4().hex * 2)
    token.chmod(0o600)
    env = {
        **os.environ,
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(token),
        "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
        "DSPARK_LOCAL_RAY": mark,
    }
    nodes = []
    for role, address in zip(("head", "worker"), ADDRESSES, strict=True):
        argv = [*NODE, role, f"--address={address}", f"--head={head}", f"--temp-dir={root}/{role}"]
        argv += [f"--pid-file={root}/{role}.pid", f"--labels=rack={role}", "--", *SHARED_MACHINE]
        nodes.append(
            subprocess.Popen(argv, env=env, stdout=(root / f"{role}.log").open("wb"), stderr=subprocess.STDOUT)
        )
    try:
        yield head, env, root
    finally:
        for node in nodes:
            node.terminate()
        for node in nodes:
            node.wait(90)
        left = marked_processes(mark)
        lock.release()
        shutil.rmtree(root, ignore_errors=True)
        assert left == []


def run(*argv: str, env: dict[str, str]) -> str:
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.real
@pytest.mark.timeout(900)
def test_two_nodes_join_are_looked_at_and_end_with_all_that_came_of_them(
    cluster: tuple[str, dict[str, str], Path],
) -> None:
    head, env, root = cluster
    joined = run(*NODE, "await", "--head", head, "--num-nodes", "2", "--timeout-s", "400", env=env)
    assert joined.split() == list(ADDRESSES), (root / "worker.log").read_text()
    doctor = (sys.executable, "-m", "dspark_train.cli.app", "doctor", "--quick", "--json", "--address", head)
    told: dict[str, Any] = json.loads(run(*doctor, env=env | {"DSPARK_RUNS": str(root / "runs")}))
    assert told["fit"], told["checks"]
    assert sorted(told["nodes"]) == list(ADDRESSES)
    said = {(check["check"], check["status"], check.get("node")) for check in told["checks"]}
    assert {(name, "ok", "all nodes") for name in ("versions", "clock", "runs", "links", "disk", "wheels")} <= said
    assert {(link["source"], link["to"]) for link in told["links"]} == {ADDRESSES, ADDRESSES[::-1]}
    assert all(link["bytes_per_s"] > 0 for link in told["links"])
    for role in ("worker", "head"):
        run(*NODE, "stop", str(root / f"{role}.pid"), env=env)
