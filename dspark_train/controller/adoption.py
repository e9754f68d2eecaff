"""What a controller that was started again finds of its run: who lives, who is to be ended, is the group whole."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from dspark_train.controller.board import Board
from dspark_train.controller.crew import CREATE_TIMEOUT_S, Crew
from dspark_train.controller.roster import Roster
from dspark_train.errors import DSparkError, PeerError
from dspark_train.schedule.messages import LedgerView


@dataclass
class Found:
    """engines: processes of those that run; cause: why the group must be formed anew, ""; dead: ranks to leave out."""

    engines: list[str]
    cause: str = ""
    dead: list[str] = field(default_factory=list)


def adopt(crew: Crew, board: Board, roster: Roster) -> Found:
    """Sort out the members that there are. Ends the half-started ones: what lacks is started again by the pools.

    Raises ClusterError.
    """
    names = [name for name in crew.names() if name != "controller"]
    engines, halves = _engines(crew, [name for name in names if name.startswith("engine-")])
    cause, dead = _settle_group(crew, roster)
    keep = {*engines, *(member.name for member in roster.group), "ledger", "master"} - set(dead)
    orphans = [name for name in names if name not in keep]
    for text in crew.kill(orphans):
        board.event("teardown.problem", "controller", text)
    text = f"adopted {', '.join(sorted(keep & set(names)))}" + (f"; ended {', '.join(orphans)}" if orphans else "")
    board.event("controller.adopted", "controller", text, halves=halves, cause=cause)
    return Found(engines, cause, dead)


def _engines(crew: Crew, names: list[str]) -> tuple[list[str], list[str]]:
    """Processes of engines that are up and feed, and those of the others."""
    up = {name for name, status in crew.ask_all(names).items() if status and status.get("state") == "ready"}
    for name in sorted(up):
        try:
            if name.endswith(".0"):
                # It may have died between the probe and this. One that feeds already keeps its life.
                crew.call(name, "feed", time.time(), timeout_s=CREATE_TIMEOUT_S)
        except DSparkError:
            up.discard(name)
    # Followers of an engine over several nodes say "starting" for ever: the first process speaks for all.
    leads = {name.rpartition(".")[0] for name in up if name.endswith(".0")}
    whole = [name for name in names if name.rpartition(".")[0] in leads]
    return whole, [name for name in names if name not in whole]


def _settle_group(crew: Crew, roster: Roster) -> tuple[str, list[str]]:
    """Make the roster's group the ledger's. Returns why it must be formed anew, and who is not to be in it."""
    pending = roster.pending
    if pending is None:
        return "", []
    try:
        view: LedgerView = crew.call("ledger", "view", timeout_s=CREATE_TIMEOUT_S)
    except PeerError:
        view = LedgerView(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, "idle")  # the watch replaces it
    joiners = {one.name for one in pending.group} - {one.name for one in roster.group}
    if view.generation >= pending.generation:
        roster.generation, roster.group, dead = pending.generation, pending.group, []
    else:
        roster.generation, dead = pending.generation, sorted(joiners)
    roster.pending = None
    return "the controller died while the group changed", dead
