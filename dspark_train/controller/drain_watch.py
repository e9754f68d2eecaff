"""Nodes that somebody has asked the cluster to drain (`ray drain-node`, an autoscaler): the run leaves them in time.

As by hand, where there is room; else the run goes on on them, says so, and looks again, since a node may join. With the
node of controller, ledger and master goes the run's present life: it stops with a checkpoint while it can.
"""

from __future__ import annotations

import time
from concurrent.futures import Future

from dspark_train.cluster.protocol import NodeInfo
from dspark_train.controller.context import RunContext
from dspark_train.controller.draining import FIXED
from dspark_train.controller.scaling import Busy, Scaling
from dspark_train.errors import DSparkError

LOOK_S = 5.0
AGAIN_S = 60.0
"""After an order that was refused, or rolled back."""


class DrainWatch:
    """Ticked by the controller's thread; what asks the cluster runs in the crew's."""

    def __init__(self, context: RunContext, scaling: Scaling) -> None:
        self._context, self._scaling = context, scaling
        self._board, self._roster = context.board, context.roster
        self._job: Future[list[NodeInfo]] | None = None
        self._next_s = 0.0
        self._seen: set[str] = set()
        self._again_s: dict[str, float] = {}
        self.lost_ground = ""
        """Why the run cannot stay where it is, "" where it can."""

    def tick(self, now_s: float) -> None:
        """Look every few seconds; leave what is drained."""
        if self._job is None and now_s >= self._next_s:
            self._job, self._next_s = self._context.crew.begin(self._context.places.in_cluster), now_s + LOOK_S
        elif self._job is not None and self._job.done():
            job, self._job = self._job, None
            if job.exception() is None:  # a cluster that does not answer is seen elsewhere
                self._leave(now_s, [node for node in job.result() if node.is_leaving])

    def _leave(self, now_s: float, leaving: list[NodeInfo]) -> None:
        places = self._context.places
        own = {node.id for node in places.bound.values()}
        for node in leaving:
            if node.id not in own:
                continue
            if node.id not in self._seen:
                self._seen.add(node.id)
                self._board.event(
                    "node.leaving", "cluster", f"{node.address} is asked to leave the cluster{_when(node)}"
                )
            fixed = [name for name in FIXED if places.bound[self._context.plan().process(name).node].id == node.id]
            if fixed:
                self.lost_ground = f"{node.address} is asked to leave the cluster, and holds {', '.join(fixed)}"
            elif node.id not in self._roster.drained and now_s >= self._again_s.get(node.id, 0.0):
                self._order(now_s, node)
        for name in self._board.ailing("node "):
            if name.removeprefix("node ") not in {node.address for node in leaving}:
                self._board.heal(name)

    def _order(self, now_s: float, node: NodeInfo) -> None:
        name = f"node {node.address}"
        try:
            self._scaling.order({}, drain=[node.id], dry_run=False, last_pause_s=None, by_hand=False)
        except Busy:
            return
        except DSparkError as error:
            self._again_s[node.id] = now_s + AGAIN_S
            text = f"{node.address} is asked to leave the cluster{_when(node)}, and what is on it has no other: {error}"
            self._board.fault(name, "node.stuck", "cluster", text)
            return
        self._again_s[node.id] = now_s + AGAIN_S
        self._board.heal(name)


def _when(node: NodeInfo) -> str:
    left_s = node.leaves_at_s - time.time()
    return f" in {left_s:.0f} s" if node.leaves_at_s else ""
