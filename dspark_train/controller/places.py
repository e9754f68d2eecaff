"""Where members start while a run goes on: on nodes that answer now, others than at the start where those are lost.

A planned node that is lost becomes another real one, so that the plan stays as it is. Decides nothing itself: see
`binding.rebind`. Thread-safe.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping

from dspark_train.controller.binding import rebind
from dspark_train.controller.board import Board
from dspark_train.controller.crew import Crew
from dspark_train.controller.joining import Bound, with_joined
from dspark_train.controller.roster import Roster
from dspark_train.plan.growth import engine_of
from dspark_train.plan.spec import Plan, ProcessSpec
from dspark_train.topology.schema import Topology

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
            usable = self._crew.usable_nodes()
            after = rebind(self._plan().nodes, before, usable, wanted, self._in_use())
            moved = [name for name in after if name not in before or after[name].id != before[name].id]
            self._crew.nodes = after
            self._roster.set_nodes(after)
        if moved:
            self._save()
        for name in sorted(set(moved) & wanted):
            was = before[name].address if name in before else "no node"
            self._board.event("node.replaced", "controller", f"{name} is {after[name].address} now, it was {was}")

    def with_joined(self, plan: Plan, topology: Topology, num_more: Mapping[str, int]) -> tuple[Plan, Bound]:
        """See `joining.with_joined`. Changes nothing; `adopt` does. Raises ClusterError."""
        return with_joined(plan, topology, self._crew.nodes, self._crew.usable_nodes(), num_more)

    def adopt(self, bound: Bound) -> None:
        """These are what the planned nodes are from now on."""
        with self._lock:
            joined = [name for name in bound if name not in self._crew.nodes]
            self._crew.nodes = {**bound, **self._crew.nodes}
            self._roster.set_nodes(self._crew.nodes)
        for name in joined:
            self._board.event("node.joined", "controller", f"{bound[name].address} is taken as {name}")

    def _in_use(self) -> set[str]:
        """The planned nodes of everything that is meant to run."""
        num = self._roster.num_desired
        names = {f"engine-{number}" for number in range(1, num["inference"] + 1)}
        names |= {f"rank-{index}" for index in range(num["trainers"])} | {one.name for one in self._roster.group}
        names |= {"controller", "ledger", "master"}
        return {process.node for process in self._plan().processes if engine_of(process.name) in names}
