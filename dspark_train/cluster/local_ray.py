"""A Ray of the run's own on this machine, for those who have no cluster: start it, end it, wait for its end.

The Ray itself is looked after by a keeper process (`keeper.py`) in a session of its own, so that neither the end of the
command line nor its Ctrl-C reaches it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil

from dspark_train.cluster.connect import ray_env
from dspark_train.cluster.host import log_tail
from dspark_train.cluster.processes import end_processes, marked_processes, same_process
from dspark_train.errors import ClusterError, StartError
from dspark_train.plan.run_layout import RunLayout

POLL_S = 0.05
LOG_NAME = "ray"


def start_local(layout: RunLayout, timeout_s: float, num_cpus: int | None = None) -> str:
    """Start a Ray on 127.0.0.1 that lives until the run is over. Returns its address, also written to `cluster.json`.

    num_cpus: what Ray believes there is; None: what this machine has. Prepares this process to connect to it. Raises
    StartError with the last lines of logs/ray.log; nothing is left running then.
    """
    layout.logs.mkdir(parents=True, exist_ok=True)
    layout.cluster.unlink(missing_ok=True)
    keeper = _spawn_keeper(layout, timeout_s, num_cpus or os.cpu_count() or 1)
    deadline_s = time.monotonic() + timeout_s + POLL_S
    try:
        while not layout.cluster.exists():
            if keeper.poll() is not None or time.monotonic() > deadline_s:
                log = layout.log(LOG_NAME)
                raise StartError("the local Ray did not start", str(log), log_tail(str(log)))
            time.sleep(POLL_S)
    except BaseException:
        keeper.terminate()  # also when the user loses patience
        keeper.wait()
        raise
    # Reap it when it ends, so that whoever looks at its id sees it gone.
    threading.Thread(target=keeper.wait, name="reap-keeper", daemon=True).start()
    facts = read_facts(layout)
    os.environ.update(ray_env(facts["address"], Path(facts["token_path"])))
    return str(facts["address"])


def end_local(layout: RunLayout, timeout_s: float) -> None:
    """End the run's own Ray and every process that came from it. A run without one, or twice, is fine.

    Raises ClusterError if something is still there after ``timeout_s``.
    """
    facts = read_facts(layout)
    if not facts.get("own"):
        return
    deadline_s = time.monotonic() + timeout_s
    keeper = same_process(int(facts["keeper_pid"]), float(facts["keeper_started_at"]))
    if keeper is not None:
        keeper.terminate()
        _wait_gone(keeper, timeout_s)
    # Without a keeper (it was killed), or after one that got stuck: what is left carries its mark.
    while left := marked_processes(facts["temp_dir"]):
        if time.monotonic() > deadline_s:
            raise ClusterError(f"processes of the local Ray do not end: {', '.join(str(p.pid) for p in left)}")
        end_processes(left, grace_s=1.0)
    shutil.rmtree(facts["temp_dir"], ignore_errors=True)


def wait_local_end(layout: RunLayout, timeout_s: float) -> bool:
    """Wait until the keeper of the run's own Ray is gone, and so all of it; True at once where there is none."""
    facts = read_facts(layout)
    keeper = same_process(int(facts.get("keeper_pid") or 0), float(facts.get("keeper_started_at") or 0.0))
    return keeper is None or _wait_gone(keeper, timeout_s)


def read_facts(layout: RunLayout) -> dict[str, Any]:
    """The content of the run's `cluster.json`, {} where there is none."""
    try:
        facts: dict[str, Any] = json.loads(layout.cluster.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    return facts


def _spawn_keeper(layout: RunLayout, timeout_s: float, num_cpus: int) -> subprocess.Popen[bytes]:
    argv = [sys.executable, "-m", "dspark_train.cluster.keeper", "--run-dir", str(layout.root.absolute())]
    argv += ["--num-cpus", str(num_cpus), "--launcher-pid", str(os.getpid()), "--start-timeout-s", str(timeout_s)]
    with layout.log(LOG_NAME).open("ab") as log:
        return subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)


def _wait_gone(process: psutil.Process, timeout_s: float) -> bool:
    deadline_s = time.monotonic() + timeout_s
    while same_process(process.pid, process.create_time()) is not None:
        if time.monotonic() > deadline_s:
            return False
        time.sleep(POLL_S)
    return True
