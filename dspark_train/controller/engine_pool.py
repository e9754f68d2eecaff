"""The engines of a run while it goes on: replaced when they die, added and drained as the wanted number changes.

Ticked by the controller's thread alone; whatever takes time runs in the crew's threads and is looked at in later ticks.
Engines are numbered from 1; the first so many whose node was not drained are to run.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from dspark_train.controller.context import RunContext
from dspark_train.controller.crew import ORDER_TIMEOUT_S
from dspark_train.controller.hearing import Status
from dspark_train.controller.places import RETRY_S
from dspark_train.controller.starts import SPARE_S
from dspark_train.errors import DSparkError, NoNode
from dspark_train.plan.growth import engine_group, number_of
from dspark_train.plan.spec import ProcessSpec

LIES = "lies:"
"""Stands in the cause where what an engine has put is not to be trusted."""
MAX_WRONG_IN_A_ROW = 3
"""So many samples found wrong by ranks, none good in between, and the engine is replaced."""


@dataclass
class _Engine:
    number: int
    processes: list[ProcessSpec]
    phase: Literal["starting", "ready", "draining", "ending"]
    job: Future[Any] | None = None
    began_s: float = 0.0

    @property
    def lead(self) -> str:
        """The process that answers requests; under its name the ledger knows the engine."""
        return self.processes[0].name


class EnginePool:
    """See the module."""

    def __init__(self, context: RunContext) -> None:
        self._crew, self._board, self._starts = context.crew, context.board, context.starts
        self._topology, self._plan, self._restarts = context.topology, context.plan, context.restarts
        self._roster, self._places = context.roster, context.places
        self._engines: dict[int, _Engine] = {}
        self._waits_until_s: dict[str, float] = {}
        """Engine without a node -> when it looks for one again."""
        self.last_start_s: float | None = None
        """How long the last engine took from its start to its first lease."""
        self.failed_starts: dict[str, str] = {}
        """Engine -> why its last start failed, until it is up."""

    # -- looking ---------------------------------------------------------------------------------------------------

    def take_over(self, names: list[str]) -> None:
        """These processes run and are fed: the start-up, or an earlier life of the controller, saw to it."""
        for number in sorted({number_of(name) for name in names}):
            self._engines[number] = _Engine(number, engine_group(self._plan(), number), "ready")

    def processes(self) -> list[str]:
        """Names of all processes that can be asked."""
        return [spec.name for engine in self._engines.values() if engine.phase != "ending" for spec in engine.processes]

    def shown(self, seen: Mapping[str, Status]) -> dict[str, Status]:
        """Process -> status, for all engines that are there, come or go."""
        shown: dict[str, Status] = {}
        for engine in self._engines.values():
            for spec in engine.processes:
                status = {"state": "starting", **seen.get(spec.name, {})}
                if engine.phase != "ready":
                    status["state"] = {"ending": "stopped"}.get(engine.phase, engine.phase)
                shown[spec.name] = status
        gone = [name for name in self._restarts.given_up() if name.startswith("engine-")]
        return shown | {f"{name}.0": {"state": "dead", "error": self._restarts.given_up()[name]} for name in gone}

    def ready_leads(self) -> list[str]:
        """The processes that answer requests, of the engines that are ready, by number."""
        return [engine.lead for _, engine in sorted(self._engines.items()) if engine.phase == "ready"]

    def is_settled(self, num_wanted: int) -> bool:
        """Whether exactly the wanted engines are there and ready."""
        is_whole = self._are_ready(num_wanted) and len(self._engines) == num_wanted
        return is_whole and not any(map(self._is_to_move, self._engines.values()))

    # -- acting ----------------------------------------------------------------------------------------------------

    def tick(self, now_s: float, num_wanted: int, seen: Mapping[str, Status], wrong_by: Mapping[str, int]) -> None:
        """One round: end what failed, start what lacks, drain what is too many."""
        wanted = self._wanted(num_wanted)
        self._forget(wanted)
        are_ready = self._are_ready(num_wanted)
        for engine in list(self._engines.values()):
            if engine.job is not None and engine.job.done():
                self._settle(engine, now_s)
            elif engine.phase == "ready" and (cause := _fault(engine, seen, wrong_by)):
                self._lose(engine, now_s, cause)
            elif engine.phase == "ready" and self._must_go(engine, wanted, are_ready):
                self._drain(engine)
        for number in wanted:
            if number not in self._engines and self._next_at_s(f"engine-{number}") <= now_s:
                self._begin(number, now_s)

    def _wanted(self, num: int) -> list[int]:
        """The engines that are to run, by number."""
        return [number_of(name) for name in self._roster.names("engine", num)]

    def _are_ready(self, num_wanted: int) -> bool:
        ready = {engine.number for engine in self._engines.values() if engine.phase == "ready"}
        return ready >= set(self._wanted(num_wanted))

    def _is_to_move(self, engine: _Engine) -> bool:
        """Whether it ends only to be made anew on other nodes."""
        return self._places.is_drained(engine.processes)

    def _must_go(self, engine: _Engine, wanted: list[int], are_ready: bool) -> bool:
        """Whether it ends now. One whose node is drained stays until all others are ready, where it can."""
        if engine.number in wanted:
            return self._is_to_move(engine)
        return are_ready or f"engine-{engine.number}" not in self._roster.retired

    def _next_at_s(self, name: str) -> float:
        """When the next start may be."""
        return max(self._restarts.next_at_s(name), self._waits_until_s.get(name, float("-inf")))

    def _forget(self, wanted: list[int]) -> None:
        """What befell engines that are not wanted any more is no fault of the run."""
        for name in self._board.ailing("engine-"):
            if number_of(name) not in wanted:
                self._waits_until_s.pop(name, None)
                self.failed_starts.pop(name, None)
                self._restarts.forgive(name)
                self._board.heal(name)

    def _begin(self, number: int, now_s: float) -> None:
        group = engine_group(self._plan(), number)
        job = self._crew.begin(partial(self._start, group, self._roster.group[0].segment))
        self._engines[number] = _Engine(number, group, "starting", job, now_s)

    def _start(self, group: list[ProcessSpec], segment: str) -> None:
        self._places.settle(group)
        name = f"engine-{number_of(group[0].name)}"
        self._board.event("engine.starting", group[0].name, f"{name} starts on {_nodes(group)}")
        self._starts.feeding_engine(group, segment)

    def _settle(self, engine: _Engine, now_s: float) -> None:
        """A job of this engine has ended."""
        assert engine.job is not None
        error, name, job_of = engine.job.exception(), f"engine-{engine.number}", engine.phase
        engine.job = None
        if job_of == "starting" and error is None:
            engine.phase, self.last_start_s = "ready", now_s - engine.began_s
            self._waits_until_s.pop(name, None)
            self.failed_starts.pop(name, None)
            self._board.heal(name)
            self._board.event("engine.feeding", engine.lead, f"{name} is ready and takes samples")
            return
        del self._engines[engine.number]
        if isinstance(error, NoNode):
            if name not in self._waits_until_s:
                self._board.fault(name, "engine.waiting", engine.lead, f"{name} waits for a node: {error}")
            self._waits_until_s[name] = now_s + RETRY_S
            self.failed_starts[name] = str(error)
        elif job_of == "starting":
            self._waits_until_s.pop(name, None)
            self._restarts.died(name, now_s, str(error))
            self.failed_starts[name] = str(error)
            self._board.fault(name, "engine.failed", engine.lead, f"{name} did not start: {error}")
        elif error is not None:
            self._board.event("teardown.problem", engine.lead, str(error))
        else:
            self._board.event("engine.ended", engine.lead, f"{name} is gone")

    def _lose(self, engine: _Engine, now_s: float, cause: str) -> None:
        """Fence an engine that died, hangs or lies: its leases go back, its processes end."""
        name = f"engine-{engine.number}"
        is_suspect = LIES in cause
        num_returned = self._crew.call("ledger", "drop_engine", engine.lead, is_suspect, timeout_s=ORDER_TIMEOUT_S)
        self._restarts.died(name, now_s, cause)
        log = self._board.layout.log(engine.lead)
        text = f"{engine.lead} died: {cause}; {num_returned} samples went back; log: {log}"
        self._board.fault(name, "engine.dead", engine.lead, text)
        if reason := self._restarts.given_up().get(name):
            self._board.fault(name, "engine.given_up", engine.lead, reason)
        engine.phase = "ending"
        engine.job = self._crew.begin(partial(self._crew.kill, [spec.name for spec in engine.processes]))

    def _drain(self, engine: _Engine) -> None:
        self._board.event("engine.draining", engine.lead, f"engine-{engine.number} takes no new samples")
        engine.phase = "draining"
        engine.job = self._crew.begin(partial(self._drained, engine))

    def _drained(self, engine: _Engine) -> None:
        """Let what is in flight end, then end the engine; what did not end goes back to the ledger."""
        timeout_s = self._topology.engines.request_timeout_s + SPARE_S
        try:
            self._crew.call(engine.lead, "drain", timeout_s=timeout_s)
        except DSparkError as error:
            self._board.event("engine.drain_failed", engine.lead, f"not drained: {error}")
        self._crew.call("ledger", "drop_engine", engine.lead, timeout_s=ORDER_TIMEOUT_S)
        for text in self._crew.end([spec.name for spec in engine.processes]):
            self._board.event("teardown.problem", engine.lead, text)

    def forgive(self, num_wanted: int) -> None:
        """Start again those that were given up: somebody asks for them anew."""
        for name in self._roster.names("engine", num_wanted):
            self._restarts.forgive(name)


def _fault(engine: _Engine, seen: Mapping[str, Status], wrong_by: Mapping[str, int]) -> str:
    """Why a ready engine must go, "" where it is well."""
    for spec in engine.processes:
        status = seen.get(spec.name, {})
        if status.get("state") == "dead":
            return f"{status.get('error') or 'its process ended'}"
    num_wrong = wrong_by.get(engine.lead, 0)
    if num_wrong >= MAX_WRONG_IN_A_ROW:
        return f"it {LIES} {num_wrong} of its samples in a row were found wrong"
    return ""


def _nodes(group: list[ProcessSpec]) -> str:
    return ", ".join(spec.node for spec in group)
