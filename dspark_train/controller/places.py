"""Where members start while a run goes on: on nodes that answer now, others than at the start where those are lost.

A planned node that is lost becomes another real one, so that the plan stays as it is. Decides nothing itself: see
`binding.rebind`. Thread-safe.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping

from dspark_train.cluster.protocol import NodeInfo
from dspark_train.controller.binding import rebind
from dspark_train.controller.board import Board
from dspark_train.controller.crew import Crew
from dspark_train.controller.roster import Roster
from dspark_train.plan.growth import engine_of
from dspark_train.plan.spec import Plan, ProcessSpec

RETRY_S = 5.0
"""How often what has no node looks for one."""


class Places:
    """See the module."""

    def __init__(
        self, crew: Crew, board: Board, roster: Roster, plan: Callable[[], Plan], save: Callable[[], None]
    ) -> None:
        """save: writes the roster."""
        self._crew, self._board, self._roster, self._plan, self._save = crew, board, roster, plan, save
        self._lock = threading.Lock()

    def settle(self, specs: Iterable[ProcessSpec]) -> None:
        """See that every node of these processes answers, or is replaced by one that does.

        Raises NoNode saying what is missing, ClusterError where the cluster does not answer.
        """
        wanted = {spec.node for spec in specs}
        with self._lock:
            before = self._crew.nodes
            usable = self.usable()
            after = rebind(self._plan().nodes, before, usable, wanted, self._in_use())
            moved = [name for name in after if name not in before or after[name].id != before[name].id]
            self._crew.nodes = after
            self._roster.set_nodes(after)
        if moved:
            self._save()
        for name in sorted(set(moved) & wanted):
            was = before[name].address if name in before else "no node"
            self._board.event("node.replaced", "controller", f"{name} is {after[name].address} now, it was {was}")

    @property
    def bound(self) -> dict[str, NodeInfo]:
        """What each planned node is now."""
        return dict(self._crew.nodes)

    def usable(self) -> list[NodeInfo]:
        """Nodes on which something may start. Raises ClusterError."""
        return [node for node in self.answering() if node.id not in self._roster.drained]

    def answering(self) -> list[NodeInfo]:
        """Nodes that answer, and that the cluster itself means to keep. Raises ClusterError."""
        return self._crew.usable_nodes()

    def in_cluster(self) -> list[NodeInfo]:
        """All living nodes of the cluster. Raises ClusterError."""
        return [node for node in self._crew.cluster_nodes() if node.alive]

    def is_drained(self, specs: Iterable[ProcessSpec]) -> bool:
        """Whether any of these processes is on a node that is being left."""
        nodes = [self._crew.nodes.get(spec.node) for spec in specs]
        return any(node is not None and node.id in self._roster.drained for node in nodes)

    def adopt(self, bound: Mapping[str, NodeInfo]) -> None:
        """These are what the planned nodes are from now on."""
        with self._lock:
            joined = [name for name in bound if name not in self._crew.nodes]
            self._crew.nodes = {**bound, **self._crew.nodes}
            self._roster.set_nodes(self._crew.nodes)
        for name in joined:
            self._board.event("node.joined", "controller", f"{bound[name].address} is taken as {name}")

    def _in_use(self) -> set[str]:
        """The planned nodes of everything that is meant to run."""
        names = {*self._roster.names("engine"), *self._roster.names("rank"), *(one.name for one in self._roster.group)}
        names |= {"controller", "ledger", "master"}
        return {process.node for process in self._plan().processes if engine_of(process.name) in names}
