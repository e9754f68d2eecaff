"""How fast a run's controller answers while the run goes on, and what watching it costs.

    .venv/bin/python benchmarks/api.py RUN [--calls 200] [--watch-s 30] [--json]

Each route is asked one call after the other, on one connection that stays open and on a new one each time; then
`status --watch` runs in a terminal of its own, and its processor time is counted. RUN: a name or a directory.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import pty
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from urllib.parse import urlsplit

import psutil

from dspark_train.cli.runs import find_run
from dspark_train.plan.run_layout import RunLayout
from dspark_train.report import state_file

ROUTES = ("/v1/state", "/v1/history", "/v1/events?limit=100", "/metrics")
GOAL_MS = 20.0
WATCH_GOAL = 0.03
WARM_UP_S = 3.0
TIMEOUT_S = 10.0


@dataclass(frozen=True)
class Answered:
    """One route's answers. Milliseconds from asking to the last byte; bytes of the last answer."""

    route: str
    connection: str
    p50_ms: float
    p95_ms: float
    max_ms: float
    num_bytes: int


def main() -> None:
    asked = arguments()
    layout = find_run(asked.run)
    state = state_file.read(layout.state)
    if state is None or state.is_terminal:
        sys.exit(f"error: {layout.name} does not run: start it, and ask again while it trains")
    answered = [
        measured(layout, state.controller.url, route, connection, asked.calls)
        for route in ROUTES
        for connection in ("kept", "new")
    ]
    found = {"answers": [asdict(one) for one in answered], "watch_cores": watch_cores(layout, asked.watch_s)}
    print(json.dumps(found, indent=1) if asked.json else table(answered, found["watch_cores"]))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("--calls", type=int, default=200)
    parser.add_argument("--watch-s", type=float, default=30.0)
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def measured(layout: RunLayout, url: str, route: str, connection: str, num_calls: int) -> Answered:
    """Ask ``num_calls`` times. connection: "kept" or "new"."""
    address, token = urlsplit(url).netloc, layout.token.read_text(encoding="utf-8").strip()
    headers = {"Authorization": f"Bearer {token}"}
    open_one = http.client.HTTPConnection(address, timeout=TIMEOUT_S)
    took_ms, num_bytes = [], 0
    for _ in range(num_calls):
        began_s = time.perf_counter()
        if connection == "new":
            open_one.close()
        open_one.request("GET", route, headers=headers)
        answer = open_one.getresponse()
        num_bytes = len(answer.read())
        took_ms.append((time.perf_counter() - began_s) * 1000)
        if answer.status != http.client.OK:
            sys.exit(f"error: {route} answers {answer.status}")
    open_one.close()
    took_ms.sort()
    return Answered(route, connection, at(took_ms, 0.5), at(took_ms, 0.95), round(took_ms[-1], 2), num_bytes)


def at(sorted_ms: list[float], share: float) -> float:
    """The time that so large a share of the calls did not exceed."""
    return round(sorted_ms[min(len(sorted_ms) - 1, int(share * len(sorted_ms)))], 2)


def watch_cores(layout: RunLayout, seconds: float) -> float:
    """The share of a core that `status --watch` takes in a terminal, once it has started."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "dspark_train.cli.app", "status", str(layout.root), "--watch"]
    watcher = subprocess.Popen(command, stdout=theirs, stderr=theirs, env={**os.environ, "TERM": "xterm"})
    threading.Thread(target=_read_all, args=(ours,), daemon=True).start()
    try:
        time.sleep(WARM_UP_S)
        before_s, began_s = _cpu_s(watcher.pid), time.monotonic()
        time.sleep(seconds)
        return round((_cpu_s(watcher.pid) - before_s) / (time.monotonic() - began_s), 4)
    finally:
        watcher.terminate()
        watcher.wait()
        os.close(theirs)


def _cpu_s(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return times.user + times.system


def _read_all(terminal: int) -> None:
    with suppress(OSError):
        while os.read(terminal, 1 << 16):
            pass


def table(answered: list[Answered], cores: float) -> str:
    """The figures as lines."""
    lines = [f"{'route':<22}{'connection':<12}{'p50':>9}{'p95':>9}{'max':>9}{'bytes':>9}"]
    for one in answered:
        missed = "" if one.p95_ms < GOAL_MS else f"  over {GOAL_MS:.0f} ms"
        figures = "".join(f"{value:>9.2f}" for value in (one.p50_ms, one.p95_ms, one.max_ms))
        lines.append(f"{one.route:<22}{one.connection:<12}{figures}{one.num_bytes:>9}{missed}")
    missed = "" if cores < WATCH_GOAL else f", over {WATCH_GOAL:.0%}"
    return "\n".join([*lines, f"status --watch: {cores:.1%} of a core{missed}"])


if __name__ == "__main__":
    main()
