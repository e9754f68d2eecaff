"""One generation's training on one rank: unit after unit, commits, checkpoints, until the ledger ends it.

Runs in the training thread. Everything slow that is not training happens in other threads: fetching, removing, writing
checkpoints.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

from dspark_train.errors import CheckpointError, DSparkError, PeerError
from dspark_train.peers import Peers
from dspark_train.schedule.messages import Commit, TakeReply
from dspark_train.schedule.unit import Unit, rank_packs
from dspark_train.throttle import Throttle
from dspark_train.trainer.checkpoint import Checkpointer
from dspark_train.trainer.checkpoint_files import Meta
from dspark_train.trainer.committer import Committer
from dspark_train.trainer.fetch import Fetcher
from dspark_train.trainer.group import GroupBroken
from dspark_train.trainer.patience import Errand, Patience
from dspark_train.trainer.process_group import ProcessGroup
from dspark_train.trainer.remover import Remover
from dspark_train.trainer.ring import PackRing, Slot
from dspark_train.trainer.state import TrainState
from dspark_train.trainer.step import Ended, UnitRunner

LOOK_S = 0.5
"""How often a wait for samples looks whether the rank is to end."""
COMMIT_TIMEOUT_S = 30.0
End = Literal["stopped", "done", "regroup"]


class Fenced(GroupBroken):
    """The ledger did not accept a commit: another generation has taken over, or the ledger began again."""


class Halted(Exception):
    """The rank itself is being stopped."""


@dataclass
class Progress:
    """Counters that `status` shows. Written by the training thread alone."""

    unit: int = 0
    step: int = 0
    tokens: int = 0
    busy_s: float = 0.0
    wait_s: float = 0.0
    fetch_s: float = 0.0
    """The part of ``wait_s`` in which all samples of the rank's share were in the store."""
    unit_end_s: float | None = None
    """When the last unit ended, by the monotonic clock."""


class PackSource:
    """A `step.Source`: the fetcher's slots, with the rank's own end looked at twice a second."""

    def __init__(self, fetcher: Fetcher, ring: PackRing, halting: threading.Event) -> None:
        self._fetcher, self._ring, self._halting = fetcher, ring, halting

    def get(self, unit: int, pack: int) -> Slot:
        """See `step.Source`. Raises Halted."""
        while not self._halting.is_set():
            got = self._fetcher.get(unit, pack, LOOK_S)
            if isinstance(got, TakeReply):
                raise Ended(got)
            if got is not None:
                return got
        raise Halted

    def release(self, slot: Slot) -> None:
        self._ring.release(slot)

    def ended(self, unit: int) -> TakeReply | None:
        """See `step.Source`. Raises Halted."""
        if self._halting.is_set():
            raise Halted
        reply = self._fetcher.end_at(unit, 0.0)
        return reply if isinstance(reply, TakeReply) else None

    def in_store_s(self, unit: int) -> float | None:
        """See `step.Source`."""
        return self._fetcher.in_store_s(unit)


@dataclass
class Loop:
    """What one generation trains with; `run` trains."""

    member: str
    peers: Peers
    unit_at: Callable[[int], Unit | None]
    validates_after: Callable[[int], bool]
    checkpoint_every: int
    config_digest: str
    state: TrainState
    group: ProcessGroup
    runner: UnitRunner
    fetcher: Fetcher
    source: PackSource
    remover: Remover
    checkpointer: Checkpointer
    patience: Patience
    halting: threading.Event
    errand: Errand
    committer: Committer
    log: logging.Logger
    first_unit: int
    min_step_s: float = 0.0
    throttle: Throttle | None = None
    progress: Progress = field(default_factory=Progress)
    validated: tuple[int, float] | None = None
    """The step of the last validation round, and the acceptance length that it came to."""

    def run(self) -> End:
        """Train until the schedule or the ledger ends it; a checkpoint is on disk then, unless it was to be at once.

        Raises Halted where the rank was stopped, and whatever ends the rank.
        """
        try:
            return self._units()
        finally:
            self.committer.close()

    def _units(self) -> End:
        index = self.first_unit
        self.progress.step = self.state.step
        while (unit := self.unit_at(index)) is not None:
            self.progress.unit, began_s = index, time.monotonic()
            try:
                self._unit(unit)
            except Ended as end:
                self.log.info("unit %d is not done: %s", index, end.reply.kind)
                return self._end(end.reply, index)
            index += 1
            self.progress.unit, self.progress.step = index, self.state.step
            if self._checkpoint_due(unit):
                self._save(index, unit.epoch)
            if unit.kind == "train":
                self.halting.wait(max(0.0, began_s + self.min_step_s - time.monotonic()))
                self.progress.unit_end_s = time.monotonic()
        return self._end(TakeReply("done"), index)

    def _unit(self, unit: Unit) -> None:
        began_s = time.monotonic()
        result = self.runner.run(unit, self.source)
        if self.throttle is not None:
            own = rank_packs(len(unit.packs), self.group.world_size, self.group.rank)
            self.halting.wait(len(own) * self.throttle.pack_wait_s())
        if unit.kind == "validate":
            self.validated = (unit.step, float(result.metrics["accept_len"]))
        took_s = time.monotonic() - began_s
        times: dict[str, float | int | str] = {"wait_s": round(result.wait_s, 4), "step_s": round(took_s, 4)}
        commit = self.state.uncommitted = Commit(unit.index, self.group.spec.generation, result.metrics | times)
        progress = self.progress
        progress.wait_s += result.wait_s
        progress.fetch_s += result.fetch_s
        progress.busy_s += took_s - result.wait_s
        progress.tokens += result.num_tokens
        self.group.tell_done()
        keys = self.fetcher.finish(unit.index)
        if self.group.rank == 0:
            self.committer.begin(partial(self._commit, commit, keys))
        else:
            self.remover.remove(keys)
        progress.unit_end_s = time.monotonic()

    def _commit(self, commit: Commit, keys: list[str]) -> None:
        """Once every rank has done the unit, tell the ledger; then remove its samples, ``keys``.

        Not before: else the ranks that outlive a death could be behind the ledger, and the step be lost. Runs in the
        committer's thread. Raises Halted, GroupBroken, Fenced, PeerError.
        """
        if not self.group.all_done(self.halting.is_set):
            raise Halted
        call = partial(self.peers.call, "ledger", "commit", commit, timeout_s=COMMIT_TIMEOUT_S)
        attempt = partial(self.errand.call, call)
        try:
            accepted = self.patience.call("the ledger", PeerError, attempt)
        except OSError as error:
            text = f"the ledger could not write the line of unit {commit.unit}: {error}"
            raise DSparkError(f"{text}: free the disk of the run's directory, then `launch --resume`") from error
        if accepted is None:
            raise Halted
        if not accepted:
            raise Fenced(
                f"the ledger refused unit {commit.unit} of generation {commit.generation}: another group has taken "
                "over, or the ledger began again. This rank stops until it is told where it belongs"
            )
        self.state.uncommitted = None
        self.remover.remove(keys)

    # -- checkpoints -------------------------------------------------------------------------------------------------

    def _checkpoint_due(self, unit: Unit) -> bool:
        """After every Nth step, or after the validation round that follows it."""
        if unit.step == 0 or unit.step % self.checkpoint_every:
            return False
        return unit.kind == "validate" or not self.validates_after(unit.step)

    def _save(self, next_unit: int, epoch: int) -> None:
        self.committer.settle()
        self._settle()
        spec = self.group.spec
        meta = Meta(
            step=self.state.step,
            unit=next_unit,
            epoch=epoch,
            config=self.config_digest,
            sharding=self.state.sharding,
            world_size=spec.world_size,
            saved_at_s=time.time(),
            accept_len=self.validated[1] if self.validated and self.validated[0] == self.state.step else None,
        )
        self.checkpointer.save(self.state, meta)

    def _end(self, reply: TakeReply, next_unit: int) -> End:
        self.committer.settle()
        if reply.kind == "regroup":
            self._settle()
            return "regroup"
        if not reply.now and self.state.step > 0:
            self._settle()
            self.patience.call("the checkpoints' disk", CheckpointError, partial(self._save_last, next_unit))
            if self.halting.is_set():
                raise Halted
        return "done" if reply.kind == "done" else "stopped"

    def _save_last(self, next_unit: int) -> None:
        """The checkpoint that the run ends with, unless it is there. Raises CheckpointError, Halted."""
        if self.checkpointer.started_step == self.state.step and not self.checkpointer.error:
            return
        last = self.unit_at(next_unit - 1)
        self._save(next_unit, last.epoch if last is not None else 0)
        self._settle()
        if self.checkpointer.error:
            raise CheckpointError(f"the last checkpoint was not written: {self.checkpointer.error}")

    def _settle(self) -> None:
        """Until no checkpoint is being written. Raises Halted."""
        self.checkpointer.wait(self.halting.is_set)
        if self.halting.is_set():
            raise Halted
