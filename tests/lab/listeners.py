"""What listens on the lab's hosts, against what docs/operations.md names. As `ss -tlnp` sees it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.lab.line import LabLine
from tests.lab.network import Host

OPERATIONS = Path(__file__).parents[2] / "docs" / "operations.md"
HEADING = "## What listens"
_USER = re.compile(r'\("[^"]*",pid=(\d+)')
EVERYWHERE = ("0.0.0.0", "*", "::")
LOOPBACK = ("127.0.0.1", "::1")


@dataclass(frozen=True)
class Listener:
    """A listening socket. who: what of the documentation's table it is; bound: "own", "loopback" or "everywhere"."""

    host: str
    who: str
    bound: str
    text: str


def of_runs(line: LabLine) -> list[Listener]:
    """Every listener on every host of the lab."""
    return [listener for host in line.hosts for listener in of_host(host)]


def of_host(host: Host) -> list[Listener]:
    """Every listener on one host."""
    found = []
    for row in host.run("ss", "-Htlnp").stdout.splitlines():
        address = row.split()[3].rpartition(":")[0].partition("%")[0].strip("[]").removeprefix("::ffff:")
        bound = "everywhere" if address in EVERYWHERE else "loopback" if address in LOOPBACK else "own"
        assert bound != "own" or address == host.address, row
        found += [Listener(host.name, _who(int(pid)), bound, row) for pid in _USER.findall(row)[:1]]
    return found


def unexplained(found: list[Listener]) -> list[str]:
    """Those that the documentation does not name, or that are open wider than it says."""
    allowed = documented()
    return sorted({f"{one.who} {one.bound}: {one.text}" for one in found if (one.who, one.bound) not in allowed})


def documented() -> set[tuple[str, str]]:
    """(who, bound) of the rows of the table in docs/operations.md."""
    section = OPERATIONS.read_text(encoding="utf-8").partition(HEADING)[2].partition("\n## ")[0]
    rows = [[cell.strip() for cell in row.strip("|").split("|")] for row in section.splitlines() if row.startswith("|")]
    return {(row[0], bound.strip()) for row in rows[2:] for bound in row[1].split(",")}


def _who(pid: int) -> str:
    """Which program listens, in the table's words."""
    words = psutil.Process(pid).cmdline()
    line = " ".join(words)
    for mark, who in MARKS:
        if mark in line:
            return who
    return f"unknown ({line[:80]})"


MARKS = (
    ("gcs_server", "Ray: GCS, on the head"),
    ("/raylet", "Ray: raylet"),
    ("runtime_env_agent", "Ray: agents"),
    ("dashboard/agent.py", "Ray: agents"),
    ("dashboard_agent", "Ray: agents"),
    ("ray::DashboardAgent", "Ray: agents"),
    ("ray::RuntimeEnvAgent", "Ray: agents"),
    ("dashboard.py", "Ray: dashboard, on the head"),
    ("client.server", "Ray: client server, on the head"),
    ("monitor.py", "Ray: monitor, on the head"),
    ("ray::IDLE", "Ray: workers"),
    ("ray::MemberActor", "members"),
    ("mooncake_master", "mooncake_master"),
    ("VLLM::", "vLLM, its workers"),
    ("serve", "vLLM or the stand-in"),
)
