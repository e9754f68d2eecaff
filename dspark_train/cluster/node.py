"""One node of a Ray cluster, for the launchers in `launch/`: starts `ray start`, and ends it with all that came of it.

As with a local Ray's keeper, every process that this Ray starts stays a descendant of this one, so that ending the node
ends exactly those, by id. The environment is the caller's (`launch/env.sh`); nothing is chosen here.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import psutil

from dspark_train.cluster.processes import become_subreaper, die_with_parent, end_descendants, is_alive, same_process
from dspark_train.cluster.reach import probe
from dspark_train.errors import ClusterError

OBJECT_STORE_BYTES = 100 << 20
"""Only ids, sizes and keys travel through Ray: near its smallest store."""
POLL_S = 0.2
JOIN_TIMEOUT_S = 300.0
"""Until the head answers, or all have joined: nodes may come up minutes apart, the head first or last."""
RAY_GRACE_S = 15.0
"""What Ray gets to end by itself, before its processes are ended one by one."""
CHILD_GRACE_S = 3.0
END_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = RAY_GRACE_S + END_TIMEOUT_S + 15.0
RAY_ENV = {
    # At SIGTERM Ray would wait half a minute for work that the launcher has stopped already.
    "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",
    # What a local Ray is kept to one node with, where this was started from a process that has one.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "1",
}


def main() -> None:
    """Run a node until SIGTERM, or stop one by its pid file. Ends with 0 when it was told to, 1 when Ray died."""
    args = _arguments().parse_args()
    try:
        if args.command == "stop":
            stop(args.pid_file)
        elif args.command == "await":
            print(await_nodes(args.head, args.num_nodes, args.timeout_s, args.pid))
        else:
            run(args)
    except ClusterError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        sys.exit(1)


def run(args: argparse.Namespace) -> None:
    """Start this node's Ray and look after it until it is told to end. Raises ClusterError if Ray dies by itself."""
    over = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: over.set())
    become_subreaper()
    if args.pid_file:
        _write(args.pid_file, json.dumps({"pid": os.getpid(), "started_at": psutil.Process().create_time()}))
    try:
        if args.command == "worker":
            wait_for_head(args.head, args.timeout_s, over)
        if not over.is_set():
            _watch(args, over)
    finally:
        if args.pid_file:
            args.pid_file.unlink(missing_ok=True)


def _watch(args: argparse.Namespace, over: threading.Event) -> None:
    argv = ray_argv(args.command, args.address, args.head, args.temp_dir, args.labels, args.ray_args)
    print(f"node {args.address}: {' '.join(argv[3:])}", flush=True)
    # Should this process be killed, nobody else would end Ray.
    ray = subprocess.Popen(argv, env={**os.environ, **RAY_ENV}, stdin=subprocess.DEVNULL, preexec_fn=die_with_parent)
    try:
        if args.command == "head":
            wait_for_head(args.head, args.timeout_s, over, lambda: ray.poll() is None)
        while not over.wait(POLL_S):
            if ray.poll() is not None:
                raise ClusterError(f"Ray on {args.address} died with code {ray.returncode}; see {args.temp_dir}")
    finally:
        _end(ray)


def ray_argv(
    role: str, address: str, head: str, temp_dir: str, labels: Mapping[str, str], more: Sequence[str]
) -> list[str]:
    """`ray start` for a node that stays in the foreground.

    role: head or worker. address: the node's own; head: "host:port". more: further arguments, which win.
    """
    argv = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", f"--node-ip-address={address}"]
    if role == "head":
        port = int(head.rpartition(":")[2])
        # A server for Ray's thin client cannot be had without: beside the head's port, not on a fixed one.
        argv += ["--head", f"--port={port}", f"--ray-client-server-port={port + 1}", "--include-dashboard=false"]
    else:
        argv += [f"--address={head}"]
    argv += [f"--temp-dir={temp_dir}", f"--object-store-memory={OBJECT_STORE_BYTES}", "--disable-usage-stats"]
    if labels:
        argv += ["--labels", ",".join(f"{key}={value}" for key, value in sorted(labels.items()))]
    return [*argv, *more]


def wait_for_head(
    head: str, timeout_s: float, over: threading.Event, starting: Callable[[], bool] = lambda: True
) -> None:
    """Until the head answers, or ``over``. Raises ClusterError after ``timeout_s``, or once ``starting`` is false."""
    deadline_s = time.monotonic() + timeout_s
    while True:
        try:
            return probe(head)
        except ClusterError:
            if not starting():
                raise ClusterError(f"the Ray head at {head} ended while it started; see its log") from None
            if over.wait(POLL_S):
                return None
            if time.monotonic() > deadline_s:
                raise


def await_nodes(head: str, num_nodes: int, timeout_s: float, pid: int = 0) -> str:
    """Wait until so many nodes are in the cluster; returns their addresses. Raises ClusterError, naming those there.

    pid: the process that starts the head; once it is gone there is nothing to wait for. 0: not known.
    """
    from dspark_train.cluster.connect import connect

    over = threading.Event()
    wait_for_head(head, timeout_s, over, lambda: not pid or is_alive(pid))
    cluster = connect(head, "dspark-await")
    deadline_s = time.monotonic() + timeout_s
    try:
        while len(alive := sorted(node.address for node in cluster.nodes() if node.alive)) < num_nodes:
            if time.monotonic() > deadline_s:
                text = f"{len(alive)} of {num_nodes} nodes joined {head} within {timeout_s:g} s: {', '.join(alive)}"
                raise ClusterError(f"{text}; see the logs of the others' nodes")
            time.sleep(POLL_S)
    finally:
        cluster.close()
    return " ".join(alive)


def stop(pid_file: Path) -> None:
    """End the node that wrote ``pid_file``, and wait for it; none is no error. Raises ClusterError if it stays."""
    try:
        facts = json.loads(pid_file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return
    process = same_process(int(facts["pid"]), float(facts["started_at"]))
    if process is None:
        pid_file.unlink(missing_ok=True)  # it was killed, and Ray with it
        return
    process.terminate()
    deadline_s = time.monotonic() + STOP_TIMEOUT_S
    while is_alive(process.pid):  # psutil's own wait takes one that nobody has reaped yet for alive
        if time.monotonic() > deadline_s:
            raise ClusterError(f"the node of {pid_file} (process {process.pid}) is still there")
        time.sleep(POLL_S)


def _end(ray: subprocess.Popen[bytes]) -> None:
    ray.terminate()
    try:
        ray.wait(RAY_GRACE_S)
    except subprocess.TimeoutExpired:
        print(f"Ray did not end within {RAY_GRACE_S:g} s", flush=True)
    if left := end_descendants(END_TIMEOUT_S, CHILD_GRACE_S):
        print(f"processes that do not end: {', '.join(str(process.pid) for process in left)}", flush=True)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f"{path.name}.{os.getpid()}")
    beside.write_text(text, encoding="utf-8")
    os.replace(beside, path)


def _labels(text: str) -> dict[str, str]:
    return dict(pair.split("=", 1) for pair in text.split(",") if pair)


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m dspark_train.cluster.node", description=main.__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for role in ("head", "worker"):
        node = commands.add_parser(role)
        node.add_argument("--address", required=True, help="this node's own")
        node.add_argument("--head", required=True, help="host:port of the head")
        node.add_argument("--temp-dir", required=True)
        node.add_argument("--labels", type=_labels, default={}, help="key=value,key=value")
        node.add_argument("--pid-file", type=Path)
        node.add_argument("--timeout-s", type=float, default=JOIN_TIMEOUT_S)
        node.add_argument("ray_args", nargs="*", help="after --: further arguments of `ray start`")
    commands.add_parser("stop").add_argument("pid_file", type=Path)
    wait = commands.add_parser("await")
    wait.add_argument("--head", required=True)
    wait.add_argument("--num-nodes", type=int, required=True)
    wait.add_argument("--pid", type=int, default=0, help="of what starts the head here")
    wait.add_argument("--timeout-s", type=float, default=JOIN_TIMEOUT_S)
    return parser


if __name__ == "__main__":
    main()
