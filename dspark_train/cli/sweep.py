"""Ending what a dead controller left behind: the members by name, then the run's own Ray."""

from __future__ import annotations

import sys

from dspark_train.cluster.connect import connect_run
from dspark_train.cluster.local_ray import end_local, read_facts
from dspark_train.cluster.reach import probe
from dspark_train.errors import ClusterError
from dspark_train.plan.run_layout import RunLayout
from dspark_train.report import state_file

END_TIMEOUT_S = 60.0
FENCED = "members on nodes that still run end by themselves, `supervision.fence_s` after their controller's death"


def sweep(layout: RunLayout) -> list[str]:
    """End every member of the run, and its local Ray if it has one. Returns what was ended.

    A cluster that does not answer is gone, with its head: what may be left on other nodes is cut off and ends itself.
    """
    own = bool(read_facts(layout).get("own"))
    ended: list[str] = []
    try:
        cluster = connect_run(layout)
        ended = cluster.list()
        for name in ended:
            cluster.kill(name)
        cluster.close()
    except ClusterError as error:
        if not own and _answers(layout):
            raise
        if not own:
            print(f"warning: {error}; {FENCED}", file=sys.stderr)
    if own:
        end_local(layout, timeout_s=END_TIMEOUT_S)
        ended.append("the local Ray")
    last = state_file.read(layout.state)
    if last is not None and not last.is_terminal:
        reason = "the controller died; ended by `stop --now`"
        state_file.write(layout.state, last.model_copy(update={"state": "stopped", "reason": reason}))
    return ended


def _answers(layout: RunLayout) -> bool:
    """Whether anybody listens where the run's cluster was."""
    try:
        probe(str(read_facts(layout).get("address", "")))
    except ClusterError:
        return False
    return True
