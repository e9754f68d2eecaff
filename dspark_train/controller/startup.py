"""Bringing a run up: what is started in which order, and what each waits for.

The store's master first (everything needs its address), then ledger, ranks and engines side by side; engines are
probed once a rank's segment can hold the probe; then the ranks form their group, and samples begin to flow.
"""

from __future__ import annotations

from functools import partial

from dspark_train.controller.board import Board
from dspark_train.controller.checkpoints import reject, sound_steps
from dspark_train.controller.crew import CREATE_TIMEOUT_S, Crew
from dspark_train.controller.roster import Roster
from dspark_train.controller.starts import Starts, join_all
from dspark_train.errors import CheckpointError
from dspark_train.plan.growth import engine_of
from dspark_train.plan.spec import Plan, ProcessSpec
from dspark_train.schedule.messages import Member
from dspark_train.topology.resolve import Resolved


class Startup:
    """Brings up the processes of a plan. Every step is journalled; the first failure is raised."""

    def __init__(self, crew: Crew, plan: Plan, resolved: Resolved, board: Board, roster: Roster) -> None:
        self._crew, self._plan, self._board, self._roster = crew, plan, board, roster
        self._topology = resolved.topology
        self._starts = Starts(crew, board, resolved.topology)

    def bring_up(self, resume: bool) -> list[str]:
        """Start everything; returns the engines' processes when samples flow.

        Raises StartError, CheckpointError, ClusterError.
        """
        with self._crew.kept_awake([p.name for p in self._plan.processes if p.kind != "controller"]):
            return self._bring_up(resume)

    def _bring_up(self, resume: bool) -> list[str]:
        self._board.say("starting the store")
        (master,) = self._of_kind("master")
        self._starts.master(master)
        engines = _by_engine(self._of_kind("engine"))
        segments = self._members(engines)
        self._form_group(segments, resume)
        self._crew.call("ledger", "run", timeout_s=CREATE_TIMEOUT_S)
        for group in engines:
            self._starts.feed(group[0].name)
        self._board.event("run.flowing", "controller", "samples flow")
        return [spec.name for group in engines for spec in group]

    def _of_kind(self, kind: str) -> list[ProcessSpec]:
        return [process for process in self._plan.processes if process.kind == kind]

    def _members(self, engines: list[list[ProcessSpec]]) -> list[Member]:
        """Start ranks and engines side by side, then probe the engines. Returns the ranks as the ledger sees them."""
        ranks, num_processes = self._of_kind("rank"), sum(map(len, engines))
        self._board.say(f"starting {len(ranks)} ranks and {num_processes} engine processes (an engine on CPU: 26-46 s)")
        rank_tasks = [partial(self._starts.rank, spec) for spec in ranks]
        engine_tasks = [partial(self._starts.engine, group) for group in engines]
        results = self._crew.side_by_side([*rank_tasks, *engine_tasks])
        segments: list[Member] = results[: len(ranks)]
        self._board.say("probing the engines: one extraction each must be right")
        self._crew.side_by_side([partial(self._starts.probe, group[0].name, segments[0].segment) for group in engines])
        return segments

    def _form_group(self, segments: list[Member], resume: bool) -> None:
        """Start the ledger at the newest checkpoint that loads, and let the ranks form their group there."""
        (ledger,) = self._of_kind("ledger")
        for step in sound_steps(self._board) if resume else [0]:
            self._board.say(f"forming the trainer group at step {step}")
            self._crew.create(ledger, resume_step=step)
            try:
                self._join(segments, step if resume else None)
            except CheckpointError as error:
                reject(self._board, step, str(error))
                self._crew.end([ledger.name])
                continue
            return
        raise CheckpointError(
            f"no checkpoint in {self._board.layout.checkpoints} can be loaded; events.jsonl says why for each. "
            "Nothing was changed; a new run starts from the beginning"
        )

    def _join(self, segments: list[Member], resume_step: int | None) -> None:
        generation = self._roster.generation + 1
        first_unit = self._crew.call("ledger", "set_group", segments, generation, timeout_s=CREATE_TIMEOUT_S)
        join_all(self._crew, self._topology, segments, generation, first_unit, resume_step)
        self._roster.set_group(generation, segments)
        self._board.event(
            "group.formed",
            "controller",
            f"{len(segments)} ranks begin at unit {first_unit}",
            generation=generation,
            resumed_step=resume_step,
        )


def _by_engine(engines: list[ProcessSpec]) -> list[list[ProcessSpec]]:
    """The processes of each engine together, first node first (engine-2.0, engine-2.1 -> one engine)."""
    groups: dict[str, list[ProcessSpec]] = {}
    for spec in engines:
        groups.setdefault(engine_of(spec.name), []).append(spec)
    return list(groups.values())
