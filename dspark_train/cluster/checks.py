"""What a check of a machine is, and running many. Which checks there are: `software_checks`, `machine_checks`,
`need_checks`. They run on the machine that they are about, so a cluster is checked by running them on every node.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

Status = Literal["failed", "warning", "ok"]
WORST_FIRST: tuple[Status, ...] = ("failed", "warning", "ok")
GIB = 2**30


@dataclass(frozen=True, slots=True)
class Need:
    """What a machine is wanted for. None and zero: not known, so only what every run needs is checked.

    memory_bytes: host memory of everything that a run puts on the fullest node. disk_bytes: of its checkpoints.
    num_gpus: on the node with the most. target: directory or hub id; target_is_readable: its config.json was read.
    dataset: directory of the prepared training set.
    """

    runs_dir: Path
    memory_bytes: int | None = None
    disk_bytes: int | None = None
    num_gpus: int = 0
    num_nodes: int = 1
    target: str = ""
    target_is_readable: bool = True
    dataset: Path | None = None
    nodes_per_engine: int = 1
    store_protocol: str = "tcp"
    store_devices: str = ""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a check saw. remedy: what to do about it, where the check's own does not fit."""

    status: Status
    text: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Check:
    """One thing to look at. Never raises for what it finds."""

    name: str
    run: Callable[[Need], Outcome]
    remedy: str


@dataclass(frozen=True, slots=True)
class Finding:
    """A check's outcome, ready to be shown. remedy is "" where nothing is to be done, node where only one was seen."""

    check: str
    status: Status
    text: str
    remedy: str
    node: str = ""

    def to_json(self) -> dict[str, Any]:
        """As a JSON object; the node only where there are several."""
        return {name: value for name, value in asdict(self).items() if name != "node" or value}


def run_checks(checks: Sequence[Check], need: Need) -> list[Finding]:
    """Run all checks side by side. Returns their findings, worst first, else in their order."""
    with ThreadPoolExecutor(max_workers=max(1, len(checks))) as pool:
        return worst_first(list(pool.map(lambda check: run_check(check, need), checks)))


def worst_first(findings: Sequence[Finding]) -> list[Finding]:
    """Failed before warning before ok, else in their order."""
    return sorted(findings, key=lambda finding: WORST_FIRST.index(finding.status))


def run_check(check: Check, need: Need) -> Finding:
    """Run one check; one that breaks is a finding as well."""
    try:
        outcome = check.run(need)
    except Exception as error:  # noqa: BLE001 - a check looks at broken machines: what it trips over is its finding
        outcome = Outcome("failed", f"the check itself failed: {type(error).__name__}: {error}")
    remedy = "" if outcome.status == "ok" else outcome.remedy or check.remedy
    return Finding(check.name, outcome.status, outcome.text, remedy)
