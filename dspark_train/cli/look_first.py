"""What `launch` looks at before it starts anything: the quick part of `doctor`, here or on every node."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dspark_train.errors import ClusterError

if TYPE_CHECKING:
    from dspark_train.cluster.checks import Finding, Need
    from dspark_train.cluster.protocol import Cluster


def look_here(need: Need) -> None:
    """Look at this machine, for a Ray of the run's own. Raises ClusterError naming what is not fit."""
    from dspark_train.cluster.checks import run_checks
    from dspark_train.cluster.machine_checks import LOCAL_CHECKS

    _tell(run_checks(LOCAL_CHECKS, need))


def look_at_nodes(cluster: Cluster, need: Need) -> None:
    """Look at every node of a cluster at the same time. Raises ClusterError naming what is not fit."""
    from dspark_train.cluster.inspect_nodes import inspect_nodes

    print("looking at the nodes (3-5 s)", flush=True)
    findings, _ = inspect_nodes(cluster, need, loads=False, rates=False)
    # How many nodes are enough the placement knows better, and says what is missing.
    _tell([finding for finding in findings if finding.check != "nodes"])


def _tell(findings: Sequence[Finding]) -> None:
    lines = {status: [_line(f) for f in findings if f.status == status] for status in ("failed", "warning")}
    for line in lines["warning"]:
        print(f"warning: {line}", file=sys.stderr)
    if lines["failed"]:
        raise ClusterError(
            "not fit to run: " + "\n  ".join(lines["failed"]) + "\n  `dspark-train doctor` says more; "
            "`launch --no-doctor` starts all the same"
        )


def _line(finding: Finding) -> str:
    where = f" on {finding.node}" if finding.node else ""
    return f"{finding.check}{where}: {finding.text}" + (f": {finding.remedy}" if finding.remedy else "")
