"""What everything that handles a run's members works with: one object, passed to each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dspark_train.controller.board import Board
from dspark_train.controller.crew import Crew
from dspark_train.controller.places import Places
from dspark_train.controller.restarts import Restarts
from dspark_train.controller.roster import Roster
from dspark_train.controller.starts import Starts
from dspark_train.plan.spec import Plan
from dspark_train.topology.resolve import Resolved
from dspark_train.topology.schema import Topology


@dataclass(frozen=True)
class RunContext:
    """plan: the plan as it stands; set_plan: replace it, on disk too, before members of it are made."""

    crew: Crew
    board: Board
    starts: Starts
    places: Places
    resolved: Resolved
    roster: Roster
    restarts: Restarts
    plan: Callable[[], Plan]
    set_plan: Callable[[Plan], None]

    @property
    def topology(self) -> Topology:
        return self.resolved.topology

    def save(self) -> None:
        """Write the roster, so that a controller started anew can go on from here. A full disk ends nothing."""
        self.roster.ports = dict(self.crew.ports)
        try:
            self.roster.write(self.board.layout.roster)
        except OSError as error:
            self.board.event("roster.unwritten", "controller", f"{self.board.layout.roster}: {error}")
