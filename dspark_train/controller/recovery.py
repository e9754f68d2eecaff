"""Going on after a death that training cannot go on through: of a rank, of the ledger, of the store's master.

Blocks the controller's thread, since nothing else is to be decided meanwhile. Which state the ranks go on with is
decided by `survivors.choose`, a pure function.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from dspark_train.controller.checkpoints import reject, sound_steps
from dspark_train.controller.context import RunContext
from dspark_train.controller.crew import ASK_TIMEOUT_S, CREATE_TIMEOUT_S
from dspark_train.controller.starts import join_all
from dspark_train.controller.survivors import Halted, Source, choose
from dspark_train.controller.trainer_pool import TrainerPool
from dspark_train.errors import CheckpointError, DSparkError, PeerError, StartError
from dspark_train.schedule.messages import LedgerView, Member

HALT_GRACE_S = 10.0
"""What a rank's threads get to end before it is replaced."""
MAX_TRIES = 3


class Recovery:
    """See the module. Every method raises DSparkError where the run cannot go on."""

    def __init__(self, context: RunContext, trainers: TrainerPool) -> None:
        self._crew, self._board, self._starts = context.crew, context.board, context.starts
        self._topology, self._plan, self._roster = context.topology, context.plan, context.roster
        self._trainers = trainers
        self.key_prefix = ""
        """Of the keys that the ledger gives out, as it was last seen."""

    # -- the trainer group -----------------------------------------------------------------------------------------

    def regroup(self, cause: str, dead: Iterable[str]) -> None:
        """Form the trainer group anew of the ranks that live; those in ``dead`` are ended first."""
        with self._others_awake():
            self._regroup_of_the_living(cause, dead)

    def _others_awake(self) -> AbstractContextManager[None]:
        """What is done here may take longer than `supervision.fence_s`, and nobody else asks after the others."""
        return self._crew.kept_awake([p.name for p in self._plan().processes if p.kind != "controller"])

    def _regroup_of_the_living(self, cause: str, dead: Iterable[str]) -> None:
        began_s = time.monotonic()
        dead = list(dict.fromkeys([*dead, *self._trainers.abandon(dead)]))
        self._board.say(f"forming the trainer group anew: {cause}")
        self._crew.kill(dead)
        for attempt in range(1, MAX_TRIES + 1):
            try:
                self._regroup([m for m in self._roster.members if m.name not in dead], cause, began_s)
                return
            except (PeerError, StartError) as error:
                if attempt == MAX_TRIES:
                    raise
                lost = self._silent([member.name for member in self._roster.members if member.name not in dead])
                self._board.event("group.retry", "controller", f"the group did not form: {error}", lost=lost)
                self._crew.kill(lost)
                dead += lost

    def _regroup(self, members: Sequence[Member], cause: str, began_s: float) -> None:
        halted = self._halt(members)
        lost = [member.name for member in members if not halted[member.name].ended]
        self._crew.kill(lost)
        alive = [member for member in members if member.name not in lost]
        view: LedgerView = self._crew.call("ledger", "view", timeout_s=CREATE_TIMEOUT_S)
        is_whole = self._topology.trainers.sharding == "replicate"
        source = choose(view.unit, view.step, {m.name: halted[m.name] for m in alive}) if is_whole else None
        if source is None:
            self._from_checkpoint(alive)
        else:
            self._from_memory(alive, source)
        text = f"{len(self._roster.group)} ranks go on after: {cause}"
        self._board.event(
            "group.formed",
            "controller",
            text,
            generation=self._roster.generation,
            pause_s=round(time.monotonic() - began_s, 3),
            ranks=self._trainers.group,
            source="a checkpoint" if source is None else source.name,
        )
        self._board.set(phase="training", generation=self._roster.generation)

    def _halt(self, members: Sequence[Member]) -> dict[str, Halted]:
        return dict(
            zip(
                [member.name for member in members],
                self._crew.side_by_side([partial(self._halt_one, member.name) for member in members]),
                strict=True,
            )
        )

    def _halt_one(self, name: str) -> Halted:
        try:
            answer = self._crew.call(name, "halt", HALT_GRACE_S, timeout_s=2 * HALT_GRACE_S + ASK_TIMEOUT_S)
        except PeerError:
            return Halted(ended=False)
        return Halted(**answer)

    def _silent(self, names: Sequence[str]) -> list[str]:
        answers = self._crew.ask_all(names)
        return [name for name, status in answers.items() if status is None or status.get("state") in ("dead", "failed")]

    def _from_memory(self, members: Sequence[Member], source: Source) -> None:
        """The survivors go on; ``source`` has the state that the others take over."""
        ordered = sorted(members, key=lambda member: member.name != source.name)
        generation = self._roster.generation + 1
        first = self._crew.call("ledger", "set_group", ordered, generation, timeout_s=CREATE_TIMEOUT_S)
        if source.uncommitted is not None and self._crew.call(
            "ledger", "adopt", source.uncommitted, timeout_s=CREATE_TIMEOUT_S
        ):
            first += 1
            text = f"unit {source.uncommitted.unit} was trained by every survivor and is committed for the dead"
            self._board.event("unit.adopted", source.name, text)
        self._join(ordered, generation, first, None)

    def _from_checkpoint(self, members: Sequence[Member]) -> None:
        """Nobody has a state to go on with: back to the newest checkpoint that loads, or to the beginning."""
        members = list(members) or self._new_ranks()
        for step in [*sound_steps(self._board), 0]:
            self.replace_ledger(step)
            generation = self._roster.generation + 1
            first = self._crew.call("ledger", "set_group", members, generation, timeout_s=CREATE_TIMEOUT_S)
            try:
                self._join(members, generation, first, step)
            except CheckpointError as error:
                reject(self._board, step, str(error))
                continue
            self._board.event("group.rewound", "controller", f"training goes on from step {step}", step=step)
            self._crew.call("ledger", "run", timeout_s=CREATE_TIMEOUT_S)
            return
        raise CheckpointError("no rank is left that has the state, and no checkpoint loads")

    def _new_ranks(self) -> list[Member]:
        """As many ranks as are wanted, where none is left."""
        self._board.say("starting the ranks anew: none is left")
        specs = [self._plan().process(name) for name in self._trainers.wanted_names()]
        self._trainers.drop_joiners()
        self._crew.kill([spec.name for spec in specs])
        return self._crew.side_by_side([partial(self._starts.rank, spec) for spec in specs])

    def _join(self, members: Sequence[Member], generation: int, first_unit: int, resume_step: int | None) -> None:
        self._roster.generation = generation  # used up, whether or not the group forms
        join_all(self._crew, self._topology, members, generation, first_unit, resume_step)
        self._trainers.settle(generation, list(members))

    # -- the ledger and the store ----------------------------------------------------------------------------------

    def ledger(self, cause: str) -> None:
        """A new ledger at the last committed step; the ranks go on from there with what they have."""
        self._board.say(f"starting the ledger anew: {cause}")
        with self._others_awake():
            self.replace_ledger(None)
            self._regroup_of_the_living("the ledger was started anew", [])
            self._crew.call("ledger", "run", timeout_s=CREATE_TIMEOUT_S)
        self._board.event("ledger.replaced", "ledger", "the ledger goes on at the last committed step")

    def replace_ledger(self, step: int | None) -> None:
        """End the ledger and make a new one after ``step``; None: after the last that is committed."""
        spec = self._plan().process("ledger")
        self._crew.kill([spec.name])
        self._crew.create(spec, resume_step=step)
        self._clear_store()

    def _clear_store(self) -> None:
        """Objects of the ledger's earlier life are of no use, and pinned: have a rank remove them."""
        for name in self._trainers.group if self.key_prefix else ():
            try:
                num_removed = self._crew.call(name, "clear_store", f"{self.key_prefix}/", timeout_s=CREATE_TIMEOUT_S)
            except DSparkError as error:
                self._board.event("store.not_cleared", name, str(error))
            else:
                self._board.event("store.cleared", name, f"{num_removed} objects of an earlier ledger were removed")
                return

    def master(self, cause: str) -> None:
        """A new master on the ports of the old one: clients mount their segments again by themselves."""
        began_s = time.monotonic()
        self._board.say(f"starting the store's master anew: {cause}")
        spec = self._plan().process("master")
        ports = {name: self._roster.ports[f"{spec.name}.{name}"] for name in spec.ports}
        with self._others_awake():
            self._crew.kill([spec.name])
            self._starts.master(spec, ports)
        num_returned: Any = self._crew.call("ledger", "lose_store", timeout_s=CREATE_TIMEOUT_S)
        text = f"the master is back after {time.monotonic() - began_s:.1f} s; {num_returned} samples are made anew"
        self._board.event("store.replaced", spec.name, text)
        self._board.set(phase="training")
