"""A rank's time in one group: formed, state in place, training, left again. Wires a generation's parts together."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import torch

from dspark_train.errors import CheckpointError, PeerError, StartError
from dspark_train.peers import Peers
from dspark_train.plan.run_layout import RunLayout
from dspark_train.schedule.unit import rank_packs
from dspark_train.throttle import Throttle
from dspark_train.trainer.carried import gather, take_over
from dspark_train.trainer.checkpoint import Checkpointer, load
from dspark_train.trainer.checkpoint_files import Found, remove_partial, step_dir
from dspark_train.trainer.committer import Committer
from dspark_train.trainer.connections import Connections
from dspark_train.trainer.fetch import Fetcher, FetchPlan
from dspark_train.trainer.group import GroupBroken, GroupSpec
from dspark_train.trainer.loop import End, Halted, Loop, PackSource
from dspark_train.trainer.parts import Parts
from dspark_train.trainer.patience import Errand, Patience
from dspark_train.trainer.process_group import ProcessGroup, Rendezvous, abort, dissolve, form, is_broken
from dspark_train.trainer.remover import Remover
from dspark_train.trainer.state import TrainState
from dspark_train.trainer.step import UnitRunner

CALL_TIMEOUT_S = 30.0
STOP_GRACE_S = 10.0
"""What fetching and removing get to end when a group is left in order."""


class Course:
    """One generation on this rank: `prepare`, `train`, and at any time, from any thread, `cut` and `leave`."""

    def __init__(
        self,
        parts: Parts,
        spec: GroupSpec,
        member: str,
        peers: Peers,
        layout: RunLayout,
        config_digest: str,
        served: Rendezvous | None,
        stays_first: Callable[[], bool],
    ) -> None:
        """served: the rendezvous, where this process serves it; it ends when the group is left.

        stays_first: whether this rank is known to be rank 0 of the next group.
        """
        self.spec, self.is_left = spec, False
        self._parts, self._member, self._peers = parts, member, peers
        self._layout, self._config_digest, self._log = layout, config_digest, parts.log
        self._served, self._stays_first = served, stays_first
        self._halting = threading.Event()
        self._ended = threading.Event()
        self._connections = Connections(spec.address, spec.port)
        self._loop: Loop | None = None

    def prepare(self, own_address: str) -> int:
        """Form the group, bring the state to every rank, start fetching. Returns the step training goes on from.

        Raises StartError, CheckpointError, StoreError; the group is left then.
        """
        trainers = self._parts.resolved.topology.trainers
        try:
            group = form(
                self.spec,
                self._layout.name,
                self._parts.device,
                own_address,
                trainers.group_timeout_s,
                self._served,
                self._connections,
                self._halting.is_set,
            )
            self._loop = self._build(group, self._state(group))
        except BaseException as error:
            self._drop_group()
            self._drop_torn()
            if isinstance(error, RuntimeError | GroupBroken):
                raise StartError(f"{self._member}: the group broke while its state was shared: {error}") from error
            raise
        self._loop.fetcher.start()
        self._log.info(
            "generation %d: rank %d of %d, from unit %d, step %d",
            self.spec.generation,
            self.spec.rank,
            self.spec.world_size,
            self.spec.first_unit,
            self._loop.state.step,
        )
        return self._loop.state.step

    def train(self) -> End | Literal["halted"]:
        """Train to the end, and leave the group in order. Raises what ends the rank, GroupBroken where that is all."""
        assert self._loop is not None
        torch.set_num_threads(self._parts.resolved.topology.trainers.cpu_threads)
        try:
            end = self._loop.run()
            self._depart(self._loop, end)
            return end
        except Halted:
            return "halted"
        except (RuntimeError, GroupBroken) as error:
            if self._halting.is_set():
                return "halted"
            if isinstance(error, GroupBroken) or not is_broken(error):
                raise
            text = str(error).partition("\n")[0]
            raise GroupBroken(f"generation {self.spec.generation} broke: another rank died or hangs: {text}") from error
        finally:
            self._loop.errand.close()
            self._ended.set()

    @property
    def unit_end_s(self) -> float | None:
        """When the last unit ended, by the monotonic clock; None where none has."""
        return self._loop.progress.unit_end_s if self._loop is not None else None

    def figures(self) -> dict[str, Any]:
        """For the rank's status."""
        if self._loop is None:
            return {}
        progress, saved, fetcher = self._loop.progress, self._loop.checkpointer, self._loop.fetcher
        return {
            "unit": progress.unit,
            "step": progress.step,
            "tokens": progress.tokens,
            "busy_s": round(progress.busy_s, 3),
            "wait_s": round(progress.wait_s, 3),
            "fetch_s": round(progress.fetch_s, 3),
            "fault": fetcher.fault or self._loop.patience.fault,
            "num_lost": fetcher.num_lost,
            "checkpoint_step": saved.last_step,
            "checkpoint_at_s": saved.last_at_s,
            "checkpoint_error": saved.error,
        }

    def cut(self) -> None:
        """Begin to end: collectives and waits in flight fail now and not at their time-out, here and on the others."""
        self._halting.set()
        if not self.is_left:
            abort(self._connections)

    def leave(self, grace_s: float) -> bool:
        """End fetching and training, remove what is queued for removal, leave the group; whether all ended in time.

        A sharded state is gone then. Twice is fine.
        """
        limit_s = time.monotonic() + grace_s
        self.cut()
        if self._loop is not None:
            fetched = self._loop.fetcher.stop(grace_s)
            trained = self._ended.wait(max(0.0, limit_s - time.monotonic()))
            self._loop.remover.stop(max(0.0, limit_s - time.monotonic()))
            if not (fetched and trained):
                self._log.warning("training or fetching does not end within %g s; it is left behind", grace_s)
                return False
        self._drop_group()
        self._drop_sharded()
        return True

    # -- inside ------------------------------------------------------------------------------------------------------

    def _depart(self, loop: Loop, end: End) -> None:
        """Leave together with all other ranks, so that none loses what it needs of this one."""
        state = loop.state
        if end == "regroup" and state.is_sharded:
            carried = gather(state, self._stays_first())
            state.group.check()
            self._parts.carried = carried
        loop.fetcher.stop(STOP_GRACE_S)
        loop.remover.stop(STOP_GRACE_S)
        state.group.part(self._halting.is_set)
        self._drop_group()
        self._drop_sharded()
        self._log.info("generation %d is left in order: %s", self.spec.generation, end)

    def _drop_group(self) -> None:
        if not self.is_left:
            dissolve()
            self._served, self.is_left = None, True

    def _drop_sharded(self) -> None:
        if self._parts.is_sharded:
            self._parts.state = None

    def _drop_torn(self) -> None:
        state = self._parts.state
        if state is not None and (state.is_sharded or state.is_torn):
            self._parts.state = None

    def _state(self, group: ProcessGroup) -> TrainState:
        """The state in place on every rank: loaded, taken over from rank 0, or initial."""
        parts, step = self._parts, self.spec.resume_step
        root = self._layout.checkpoints
        parts.settle(self._halting.is_set)
        if group.rank == 0:
            for name in remove_partial(root):
                self._log.warning("removed %s, which was never finished", name)
        if step is not None:
            parts.carried = None
        keeps = parts.state is not None and not parts.is_sharded and step != 0
        state = parts.state if keeps and parts.state is not None else parts.fresh_state()
        state.enter(group)
        if step:
            state.is_torn = True
            meta = load(Found(step, step_dir(root, step)), state, group)
            if meta.config != self._config_digest:
                self._log.warning("the checkpoint of step %d was written under another topology", step)
        elif state.is_sharded:
            take_over(state, parts.carried)
        state.share()
        state.is_torn = False
        self._check_step(state)
        parts.carried = None
        return state

    def _check_step(self, state: TrainState) -> None:
        """Never go on from a state that is not what the schedule says, such as a fresh one in a run's midst."""
        wanted = self._parts.schedule.num_steps_before(self.spec.first_unit)
        if state.step != wanted:
            raise CheckpointError(
                f"generation {self.spec.generation} begins at unit {self.spec.first_unit}, after {wanted} steps, and "
                f"its rank 0 has {state.step} steps in memory: name the checkpoint to load"
            )

    def _build(self, group: ProcessGroup, state: TrainState) -> Loop:
        parts, topology = self._parts, self._parts.resolved.topology
        ring = parts.ring_for(group.world_size)
        plan = FetchPlan(
            member=self._member,
            unit_at=parts.unit_at,
            share=lambda num_packs: rank_packs(num_packs, group.world_size, group.rank),
            first_unit=self.spec.first_unit,
            max_units=topology.trainers.prefetch_steps,
            outage_s=topology.trainers.group_timeout_s,
            generation=self.spec.generation,
        )
        remover = Remover(parts.store, self._log)
        release = partial(remover.remove, then=self._tell_released)
        fetcher = Fetcher(plan, self._peers, parts.store, ring, parts.dataset, release, self._log)
        tell = partial(self._tell_checkpointed, group)
        rule = topology.checkpoint
        parts.checkpointer = Checkpointer(
            self._layout.checkpoints, rule.keep, rule.keep_best, rule.timeout_s, group, tell, self._log
        )
        committer = Committer()
        return Loop(
            member=self._member,
            peers=self._peers,
            unit_at=parts.unit_at,
            validates_after=parts.schedule.validates_after,
            checkpoint_every=topology.checkpoint.every_steps,
            config_digest=self._config_digest,
            state=state,
            group=group,
            runner=UnitRunner(state, group, parts.dataset, parts.shape, topology.run.seed, committer.settle),
            fetcher=fetcher,
            source=PackSource(fetcher, ring, self._halting),
            remover=remover,
            checkpointer=parts.checkpointer,
            patience=Patience(topology.trainers.group_timeout_s, self._halting, self._log),
            halting=self._halting,
            errand=Errand(self._halting),
            committer=committer,
            log=self._log,
            first_unit=self.spec.first_unit,
            min_step_s=topology.trainers.min_step_s,
            throttle=Throttle(self._layout.throttle),
        )

    def _tell_released(self, keys: list[str]) -> None:
        self._peers.call("ledger", "release", self._member, keys, timeout_s=CALL_TIMEOUT_S)

    def _tell_checkpointed(self, group: ProcessGroup, step: int) -> None:
        try:
            self._peers.call("ledger", "checkpointed", step, timeout_s=CALL_TIMEOUT_S)
        except PeerError as error:
            self._log.warning("the ledger was not told of the checkpoint of step %d: %s", step, error)
