"""Reading and writing `state.json`, and asking a live controller: how the command line learns the truth about a run.

`current` never trusts an old file: if the run is not at its end and its controller does not answer, the state is
"lost", with the last known figures kept and dead local processes shown dead.
"""

from __future__ import annotations

import json
import os
import threading
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import urlsplit

from dspark_train.plan.run_layout import RunLayout
from dspark_train.report.state import RunState

HTTP_OK = 200
ASK_TIMEOUT_S = 0.3
"""How long `status` waits for a controller; it answers in milliseconds when it is alive."""


LATE_S = 10.0
"""After so long without a word from a controller that is there, `status` says so: it writes twice a second."""
SILENT_S = 120.0
"""After so long without a word a controller is called lost, even if its process is there."""


def write(path: Path, state: RunState) -> None:
    """Replace ``path`` by ``state`` in one step: a reader sees the old or the new one, never half.

    Two that write at once, such as a controller that ends and the next one, do not write into each other's file.
    """
    beside = path.with_suffix(f".json.{os.getpid()}-{threading.get_ident()}.new")
    beside.write_text(state.to_json() + "\n", encoding="utf-8")
    os.replace(beside, path)


def read(path: Path) -> RunState | None:
    """The last written state, None where there is none yet."""
    try:
        return RunState.model_validate_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None


def ask(layout: RunLayout, url: str, timeout_s: float = ASK_TIMEOUT_S) -> RunState | None:
    """What the controller itself says, None if it does not answer within ``timeout_s``."""
    body = request(layout, url, "GET", "/v1/state", timeout_s=timeout_s)
    return RunState.model_validate_json(body) if body is not None else None


def request(
    layout: RunLayout, url: str, method: str, path: str, *, body: dict[str, object] | None = None, timeout_s: float
) -> str | None:
    """Call the controller's API with the run's token. None if nobody answers, or not with 200."""
    status, text = call(layout, url, method, path, body=body, timeout_s=timeout_s)
    return text if status == HTTP_OK else None


def call(
    layout: RunLayout, url: str, method: str, path: str, *, body: dict[str, object] | None = None, timeout_s: float
) -> tuple[int, str]:
    """Call the controller's API with the run's token: HTTP status and text, (0, why) if nobody answers."""
    import http.client

    parts = urlsplit(url)
    try:
        token = layout.token.read_text(encoding="utf-8").strip()
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=timeout_s)
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        connection.request(method, path, body=json.dumps(body) if body is not None else None, headers=headers)
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
    except (OSError, http.client.HTTPException) as error:
        return 0, str(error)
    return answer.status, text


def current(layout: RunLayout) -> RunState | None:
    """The truth about a run, from its controller if that answers, else from the files alone. None: nothing started."""
    last = read(layout.state)
    if last is None or last.is_terminal:
        return last
    live = ask(layout, last.controller.url) if last.controller.url else None
    if live is not None:
        return live
    # The controller may have ended between the two looks.
    last = read(layout.state) or last
    if last.is_terminal:
        return last
    return _late(last) if _may_be_busy(last) else _lost(last)


def _may_be_busy(state: RunState) -> bool:
    """Whether a controller that does not answer may be alive: its process may live, its word is fresh."""
    return age_s(state) < SILENT_S and _may_live(state.controller.host, state.controller.pid or None)


def _late(state: RunState) -> RunState:
    if age_s(state) < LATE_S:
        return state
    fault = (
        f"the controller has said nothing for {age_s(state):.0f} s; its process is there: is the machine overloaded?"
    )
    return state.model_copy(update={"faults": [*state.faults, fault]})


def age_s(state: RunState) -> float:
    """Seconds since the controller last wrote the state."""
    if not state.written_at:
        return 0.0
    return (datetime.now(UTC) - datetime.fromisoformat(state.written_at)).total_seconds()


def _lost(last: RunState) -> RunState:
    pools = {}
    for name, pool in last.pools.items():
        members = [
            member if _may_live(member.node, member.pid) else member.model_copy(update={"state": "dead"})
            for member in pool.members
        ]
        num_ready = sum(member.state == "ready" for member in members)
        pools[name] = pool.model_copy(update={"members": members, "ready": num_ready, "tokens_per_s": 0.0})
    fault = (
        f"the controller (pid {last.controller.pid} on {last.controller.host}) does not answer; "
        f"last word {age_s(last):.0f} s ago: {last.state} at step {last.step}"
    )
    return last.model_copy(
        update={"state": "lost", "faults": [*last.faults, fault], "pools": pools, "tokens_per_s": 0.0}
    )


def _may_live(node: str, pid: int | None) -> bool:
    """False only where it is certain that the process is gone: it ran on this machine, and no longer does."""
    here = {"127.0.0.1", "localhost", os.uname().nodename}
    return pid is None or node not in here or Path(f"/proc/{pid}").exists()
