"""How one member comes up, step by step, each with a deadline: an engine on its nodes, a rank, the store's master.

Used by the start-up and by the pools. Raises what failed; who is left half started is ended here.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import FIRST_EXCEPTION, wait
from functools import partial

from dspark_train.controller.board import Board
from dspark_train.controller.crew import CREATE_TIMEOUT_S, Crew
from dspark_train.controller.hearing import Hearing
from dspark_train.errors import StartError
from dspark_train.plan.spec import ProcessSpec
from dspark_train.schedule.messages import Member
from dspark_train.store.ports import AddressInUse
from dspark_train.topology.schema import Topology
from dspark_train.trainer.group import GroupSpec

SPARE_S = 30.0
"""Added to a member's own timeout, so that its own, better-worded error comes first."""


NUM_STARTS = 3
"""Of an engine on several nodes, with new ports each, where one was taken in spite of its reservation."""
LOOK_S = 1.0
"""How often the other nodes of an engine are looked at while it starts."""


class Starts:
    """Starts members of a run. Every method blocks; call it in a thread of its own."""

    def __init__(self, crew: Crew, board: Board, topology: Topology) -> None:
        self._crew, self._board, self._topology = crew, board, topology

    def master(self, spec: ProcessSpec, wanted_ports: dict[str, int] | None = None) -> None:
        """The store's master, on the ports that it had before where they are given."""
        self._crew.create(spec)
        self._crew.reserve_ports(spec, wanted_ports)
        self._crew.start(spec.name, self._topology.store.start_timeout_s + SPARE_S)
        self._board.event("store.ready", spec.name, "the store's master answers")

    def rank(self, spec: ProcessSpec) -> Member:
        """A rank with its segment in the store, not in a group yet."""
        self._crew.create(spec, name=spec.name)
        info = self._crew.start(spec.name, self._topology.trainers.start_timeout_s + SPARE_S)
        self._board.event("rank.ready", spec.name, f"draft built, segment {info['segment']} mounted", pid=info["pid"])
        return Member(spec.name, info["segment"], info["capacity_bytes"])

    def joiner(self, spec: ProcessSpec) -> Member:
        """A rank that is to join a group in training: warmed as well, so that nobody has to wait for it."""
        try:
            member = self.rank(spec)
            self._crew.call(spec.name, "warm", timeout_s=self._topology.trainers.start_timeout_s)
        except BaseException:
            self._crew.end([spec.name])
            raise
        return member

    def engine(self, group: Sequence[ProcessSpec]) -> None:
        """An engine on its nodes, all of them or none, until vLLM answers. Raises what failed first, on any node."""
        for attempt in range(1, NUM_STARTS + 1):
            try:
                self._engine_once(group)
                break
            except AddressInUse as error:
                # An engine on one node has tried other ports by itself; several nodes have to agree on theirs.
                if attempt == NUM_STARTS or len(group) == 1:
                    raise
                self._board.event("engine.retry", group[0].name, f"starting again with other ports: {error.what}")
                self._crew.end([spec.name for spec in group])
        self._board.event("engine.started", group[0].name, "vLLM answers /health")

    def _engine_once(self, group: Sequence[ProcessSpec]) -> None:
        self._crew.side_by_side(
            [
                partial(self._crew.create, spec, name=spec.name, node_rank=node_rank)
                for node_rank, spec in enumerate(group)
            ]
        )
        for spec in group:
            self._crew.reserve_ports(spec)
        timeout_s = self._topology.engines.start_timeout_s + SPARE_S
        jobs = [self._crew.begin(partial(self._crew.start, spec.name, timeout_s)) for spec in group]
        followers, hearing = [spec.name for spec in group[1:]], Hearing(self._topology.supervision.silence_s)
        while not all(job.done() for job in jobs):
            done, _ = wait(jobs, LOOK_S, return_when=FIRST_EXCEPTION)
            if failed := next((error for job in done if (error := job.exception()) is not None), None):
                raise failed
            # The first node waits for the others until its time is over: it is not told that one of them died.
            for name, status in hearing.take(time.monotonic(), self._crew.ask_all(followers)).items():
                if status["state"] == "dead":
                    raise StartError(f"{name} ended while the engine started: {status.get('error')}")

    def probe(self, name: str, segment: str) -> None:
        """One extraction into ``segment`` must be right."""
        self._crew.call(name, "probe", segment, timeout_s=self._topology.engines.request_timeout_s + SPARE_S)
        self._board.event("engine.ready", name, "the probe extraction is right")

    def feed(self, name: str) -> None:
        """Let a probed engine lease samples, from now on the only one of its name."""
        self._crew.call(name, "feed", time.time(), timeout_s=CREATE_TIMEOUT_S)

    def feeding_engine(self, group: Sequence[ProcessSpec], segment: str) -> None:
        """An engine from nothing to the first lease, while the run goes on."""
        try:
            self.engine(group)
            self.probe(group[0].name, segment)
            self.feed(group[0].name)
        except BaseException:
            self._crew.end([spec.name for spec in group])
            raise


def join_all(
    crew: Crew,
    topology: Topology,
    members: Sequence[Member],
    generation: int,
    first_unit: int,
    resume_step: int | None,
) -> None:
    """Have all members form their group now; ``resume_step`` as in `GroupSpec`. Raises what a member raises."""
    address, port = crew.call(members[0].name, "reserve_rendezvous", timeout_s=CREATE_TIMEOUT_S)
    timeout_s = topology.trainers.group_timeout_s + topology.checkpoint.timeout_s + SPARE_S
    specs = [
        GroupSpec(generation, len(members), rank, address, port, first_unit, resume_step)
        for rank in range(len(members))
    ]
    crew.side_by_side(
        [
            partial(crew.call, member.name, "join", spec, timeout_s=timeout_s)
            for member, spec in zip(members, specs, strict=True)
        ]
    )
