"""The ranks of a run while it goes on: started, let in and out at a boundary that is announced ahead.

Ticked by the controller's thread alone; whatever takes time runs in the crew's threads and is looked at in later ticks.
A group that broke is `recovery.py`'s: here everything happens in an order that lets nobody wait.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from dspark_train.controller.context import RunContext
from dspark_train.controller.crew import ORDER_TIMEOUT_S
from dspark_train.controller.hearing import Status
from dspark_train.controller.places import RETRY_S
from dspark_train.controller.starts import SPARE_S
from dspark_train.errors import NoNode, PeerError
from dspark_train.plan.spec import ProcessSpec
from dspark_train.schedule.messages import LedgerView, Member
from dspark_train.trainer.group import GroupSpec

FOREVER_S = 10 * 365 * 86400.0
"""A joiner waits in its call for a boundary that may be a stalled step away; who is waited for is watched instead."""

LATE_S = 2.0
"""A rank that has not moved by itself so long after the switch was told of it too late."""


@dataclass
class Resize:
    """A change of the group that is on its way."""

    generation: int
    members: list[Member]
    leavers: list[str]
    specs: dict[str, GroupSpec]
    first_unit: int
    joins: dict[str, Future[Any]] = field(default_factory=dict)
    switched_at_s: float | None = None
    """When the ledger was first seen to have switched."""


class TrainerPool:
    """See the module."""

    def __init__(self, context: RunContext) -> None:
        self._crew, self._board, self._starts = context.crew, context.board, context.starts
        self._topology, self._plan, self._restarts = context.topology, context.plan, context.restarts
        self._roster, self._save, self._places = context.roster, context.save, context.places
        self._waits_until_s: dict[str, float] = {}
        """Rank without a node -> when it looks for one again."""
        self._homeless, self._homeless_until_s = "", 0.0
        self._joiners: dict[str, Future[Member]] = {}
        self._began_s: dict[str, float] = {}
        self._leaving: dict[str, Future[Any]] = {}
        self.resize: Resize | None = None
        self.last_pause_s: float | None = None
        """How long training stood still for the last resize."""
        self.last_start_s: float | None = None
        """How long the last rank took from its start to being ready to join."""
        self.failed_starts: dict[str, str] = {}
        """Rank -> why its last start failed, until it is up."""

    # -- looking ---------------------------------------------------------------------------------------------------

    @property
    def group(self) -> list[str]:
        """Names of the ranks that train, in the group's order."""
        return [member.name for member in self._roster.group]

    @property
    def _retiring(self) -> list[str]:
        return [name for name in self.group if name in self._roster.retired]

    @property
    def _staying(self) -> list[str]:
        return [name for name in self.group if name not in self._roster.retired]

    def members(self) -> list[str]:
        """Names of all ranks that can be asked."""
        return [*self.group, *(name for name in self._joiners if name not in self.group)]

    def shown(self, seen: Mapping[str, Status]) -> dict[str, Status]:
        """Rank -> status, for all ranks that are there, come or go."""
        leavers = [*self._leaving, *(self.resize.leavers if self.resize else ())]
        shown = {name: seen.get(name, {"state": "starting"}) for name in self.group}
        shown |= {name: {**seen.get(name, {}), "state": "starting"} for name in self._joiners if name not in shown}
        shown |= {name: {**seen.get(name, {}), "state": "draining"} for name in leavers}
        gone = {name: why for name, why in self._restarts.given_up().items() if name.startswith("rank-")}
        return shown | {name: {"state": "dead", "error": why} for name, why in gone.items() if name not in shown}

    def homeless(self, now_s: float) -> str:
        """Why a whole new group cannot start yet, "" where every wanted rank has a node that answers."""
        if now_s < self._homeless_until_s:
            return self._homeless
        self._homeless, self._homeless_until_s = "", now_s + RETRY_S
        try:
            self._places.settle(map(self._plan().process, self.wanted_names()))
        except NoNode as error:
            self._homeless = str(error)
        return self._homeless

    def wanted_names(self) -> list[str]:
        """The ranks of a group that begins anew."""
        return self._roster.names("rank")

    def is_settled(self, num_wanted: int) -> bool:
        """Whether exactly so many ranks train, and none comes or goes."""
        is_whole = len(self._staying) == len(self.group) == num_wanted
        return is_whole and not (self.resize or self._joiners or self._leaving)

    # -- acting ----------------------------------------------------------------------------------------------------

    def tick(self, now_s: float, num_wanted: int, seen: Mapping[str, Status], view: LedgerView) -> str:
        """One round. Returns why the group must be formed anew, "" where all is well."""
        self._collect(now_s)
        self._forget(num_wanted)
        if self.resize is not None:
            return self._follow(self.resize, now_s, seen, view)
        if view.state != "running":
            return ""
        self._start_missing(now_s, num_wanted)
        ready = [job.result() for job in self._joiners.values() if job.done()]
        ready = ready if len(ready) == len(self._joiners) else []
        staying = self._staying[:num_wanted]
        # Whoever is to retire stays until others are there; the last one, until they have learnt its state.
        are_enough = bool(staying) and len(staying) + len(ready) >= num_wanted
        after = (
            staying if are_enough else [m.name for m in self._roster.members if m.name in {*staying, *self._retiring}]
        )
        leavers = [name for name in self.group if name not in after]
        if ready or leavers:
            return self._announce([*(m for m in self._roster.members if m.name in after), *ready], leavers)
        return ""

    def _collect(self, now_s: float) -> None:
        """Joiners that did not come up, and leavers that are gone."""
        for name, job in list(self._joiners.items()):
            if job.done() and job.exception() is None and name in self._began_s:
                self.last_start_s = now_s - self._began_s.pop(name)
            if job.done() and (error := job.exception()) is not None:
                del self._joiners[name]
                self._note_failure(name, now_s, error)
        for name, job in list(self._leaving.items()):
            if job.done():
                del self._leaving[name]
                self._board.event("rank.ended", name, f"{name} is gone")

    def _note_failure(self, name: str, now_s: float, error: BaseException) -> None:
        self.failed_starts[name] = str(error)
        if not isinstance(error, NoNode):
            self._waits_until_s.pop(name, None)
            self._restarts.died(name, now_s, str(error))
            self._board.fault(name, "rank.failed", name, f"{name} did not start: {error}")
            return
        if name not in self._waits_until_s:
            self._board.fault(name, "rank.waiting", name, f"{name} waits for a node: {error}")
        self._waits_until_s[name] = now_s + RETRY_S

    def _forget(self, num_wanted: int) -> None:
        """What befell ranks that are not wanted any more is no fault of the run."""
        if len(self.group) < num_wanted:
            return
        for name in self._board.ailing("rank-"):
            if name not in self.group:
                self.failed_starts.pop(name, None)
                self._restarts.forgive(name)
                self._board.heal(name)

    def _start_missing(self, now_s: float, num_wanted: int) -> None:
        taken = {*self.group, *self._joiners, *self._leaving}
        free = [name for name in self._roster.names("rank", num_wanted) if name not in taken]
        num_missing = num_wanted - len(self._staying) - len(self._joiners)
        for name in free[: max(0, num_missing)]:
            if max(self._restarts.next_at_s(name), self._waits_until_s.get(name, 0.0)) <= now_s:
                spec = self._plan().process(name)
                self._joiners[name] = self._crew.begin(partial(self._start, spec))
                self._began_s[name] = now_s

    def _start(self, spec: ProcessSpec) -> Member:
        self._places.settle([spec])
        self._board.event("rank.starting", spec.name, f"{spec.name} starts on {spec.node}, to join the group")
        return self._starts.joiner(spec)

    def _announce(self, members: Sequence[Member], leavers: list[str]) -> str:
        """Let these take over at a boundary ahead of what the ranks have prefetched. Returns why that failed, or ""."""
        try:
            self._tell(members, leavers)
        except PeerError as error:
            return f"not all could be told of the group's change: {error}"
        return ""

    def _tell(self, members: Sequence[Member], leavers: list[str]) -> None:
        generation = self._roster.generation + 1
        self._roster.set_pending(generation, members)
        self._save()
        address, port = self._crew.call(members[0].name, "reserve_rendezvous", timeout_s=ORDER_TIMEOUT_S)
        first = self._crew.call("ledger", "announce_group", list(members), generation, timeout_s=ORDER_TIMEOUT_S)
        specs = {
            member.name: GroupSpec(generation, len(members), rank, address, port, first)
            for rank, member in enumerate(members)
        }
        self.resize = Resize(generation, list(members), leavers, specs, first)
        for name, spec in specs.items():
            if name in self._joiners:
                self._join(self.resize, name)
            else:
                self._crew.call(name, "expect", spec, timeout_s=ORDER_TIMEOUT_S)
        text = f"{len(self.group)} -> {len(members)} ranks from unit {first} on"
        self._board.event("group.announced", "controller", text, generation=generation)

    def _join(self, resize: Resize, name: str) -> None:
        resize.joins[name] = self._crew.begin(
            partial(self._crew.call, name, "join", resize.specs[name], timeout_s=FOREVER_S)
        )

    def _follow(self, resize: Resize, now_s: float, seen: Mapping[str, Status], view: LedgerView) -> str:
        """Look how far a resize is; returns why it failed, "" where it did not."""
        if dead := [name for name in resize.specs if seen.get(name, {}).get("state") in ("dead", "failed", "broken")]:
            return f"{dead[0]} failed while the group changed: {seen[dead[0]].get('error')}"
        for name, job in resize.joins.items():
            if job.done() and (error := job.exception()) is not None:
                return f"{name} could not join: {error}"
        if view.generation < resize.generation:
            return ""
        if resize.switched_at_s is None:
            resize.switched_at_s = now_s
        states = {name: seen.get(name, {}) for name in resize.specs}
        for name, status in states.items():
            # It reached the boundary before it was told of the next group.
            is_waiting = status.get("state") == "ready" and status.get("generation") != resize.generation
            if is_waiting and name not in resize.joins and now_s > resize.switched_at_s + LATE_S:
                self._join(resize, name)
        if all(_is_in(status, resize.generation) for status in states.values()):
            self._finish(resize, states)
        elif now_s - resize.switched_at_s > self._topology.trainers.group_timeout_s + SPARE_S:
            late = [name for name, status in states.items() if not _is_in(status, resize.generation)]
            return f"{', '.join(late)} did not join generation {resize.generation} in time"
        return ""

    def _finish(self, resize: Resize, states: Mapping[str, Status]) -> None:
        pauses_s = [float(status["pause_s"]) for status in states.values() if status.get("pause_s") is not None]
        self.last_pause_s = round(max(pauses_s, default=0.0), 3)
        self.settle(resize.generation, resize.members)
        for name in resize.leavers:
            self._leaving[name] = self._crew.begin(partial(self._crew.end, [name]))
        text = (
            f"{len(resize.members)} ranks train from unit {resize.first_unit} on; the pause was {self.last_pause_s} s"
        )
        self._board.event("group.formed", "controller", text, generation=resize.generation, pause_s=self.last_pause_s)

    def settle(self, generation: int, members: Sequence[Member]) -> None:
        """Note the group of now, whatever was on its way."""
        self.resize = None
        self._roster.set_group(generation, members)
        self._save()
        for name in self.group:
            self._waits_until_s.pop(name, None)
            self._joiners.pop(name, None)
            self.failed_starts.pop(name, None)
            self._board.heal(name)

    def abandon(self, dead: Iterable[str]) -> list[str]:
        """The group is to be formed anew without these. Returns who else must be ended: joiners that wait in a join.

        What joins a group that does not come cannot be called back; it is started again.
        """
        waiting = list(self.resize.joins) if self.resize is not None else []
        self.resize = None
        for name in [*dead, *waiting]:
            self._joiners.pop(name, None)
        return waiting

    def drop_joiners(self) -> None:
        """End ranks that have not joined: what they were started for is not wanted any more."""
        for name in list(self._joiners):
            job = self._joiners.pop(name)
            self._leaving[name] = self._crew.begin(partial(self._end_when_up, name, job))

    def _end_when_up(self, name: str, job: Future[Member]) -> None:
        if job.exception() is None:
            self._crew.end([name])

    def forgive(self, num_wanted: int) -> None:
        """Start again those that were given up: somebody asks for them anew."""
        for name in self._roster.names("rank", num_wanted):
            self._restarts.forgive(name)


def _is_in(status: Status, generation: int) -> bool:
    """Whether a rank trains, or trained to the end, in this generation; one that waits for it says so too."""
    return status.get("generation") == generation and status.get("state") in ("training", "stopped", "done")
