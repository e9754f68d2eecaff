"""The member "ledger": the pure ledger of schedule/ledger.py with a clock, long polls and the files of a run.

Runs in one event loop, so every method sees the ledger at rest. Decides nothing itself.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dspark_train.controller.bell import Bell
from dspark_train.controller.step_log import StepLog, last_step
from dspark_train.controller.trackers import trackers_of
from dspark_train.errors import DataError, Problem, TopologyError
from dspark_train.peers import Peers
from dspark_train.plan.run_layout import RunLayout
from dspark_train.schedule.layout import SampleLayout
from dspark_train.schedule.leases import key_prefix
from dspark_train.schedule.ledger import Ledger
from dspark_train.schedule.lives import Lives
from dspark_train.schedule.messages import Commit, Lease, LedgerView, Lost, Member, Ready, TakeReply
from dspark_train.schedule.rule import LedgerRule
from dspark_train.schedule.steps import Schedule, ScheduleSpec
from dspark_train.topology.resolve import Resolved

MAX_WAIT_S = 30.0
"""The longest a call is held open, whatever it asks for."""
EXPIRE_EVERY_S = 1.0
"""How often leases are looked at that ran out."""
logger = logging.getLogger(__name__)


class LedgerService:
    """See the module. ``stop`` closes its files; everything committed is on disk before that."""

    def __init__(
        self,
        run_dir: str,
        resume_step: int | None,
        peers: Peers | None = None,
        *,
        resolved: Resolved | None = None,
        lengths_tokens: NDArray[np.int64] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Continue after ``resume_step`` (0: from the start); what the files say of later steps is dropped.

        None: after the last step that is committed, which is the last whole line of metrics.jsonl.

        resolved, lengths_tokens: read from the run and its data set where not given. Raises DataError, TopologyError.
        """
        layout = RunLayout(Path(run_dir))
        resolved = resolved or Resolved.model_validate_json(layout.resolved.read_text(encoding="utf-8"))
        lengths = _read_lengths(resolved.topology.data.path) if lengths_tokens is None else lengths_tokens
        self._clock = clock
        self._schedule = Schedule(ScheduleSpec.of(resolved.topology, lengths))
        if resume_step is None:
            resume_step = last_step(layout.metrics)
        self._log = StepLog(layout, resume_step, trackers_of(layout, resolved))
        validated = resume_step in self._log.validation.steps
        first_unit = self._schedule.first_unit_after_step(resume_step, validated=validated)
        self._ledger = Ledger(self._schedule, _sample_bytes(resolved, layout), _rule(resolved, layout), first_unit)
        self._ledger.view()  # counts the samples of the run once, here and not while others wait
        self._checkpoint_step = 0
        self._lives = Lives()
        self._samples_bell, self._leases_bell = Bell(), Bell()
        self._expiry: asyncio.Task[None] | None = None

    # -- the controller --------------------------------------------------------------------------------------------

    async def set_group(self, members: Sequence[Member], generation: int) -> int:
        """See `Ledger.set_group`: the group from the next uncommitted unit on, which is returned."""
        unit = self._ledger.set_group(members, generation)
        logger.info("generation %d: %d ranks from unit %d on", generation, len(members), unit)
        self._ring()
        return unit

    async def announce_group(self, members: Sequence[Member], generation: int) -> int:
        """See `Ledger.announce_group`: the group from a unit ahead on, which is returned."""
        unit = self._ledger.announce_group(members, generation)
        logger.info("generation %d: %d ranks take over at unit %d", generation, len(members), unit)
        self._ring()
        return unit

    async def adopt(self, commit: Commit) -> bool:
        """See `Ledger.adopt`; its line is written first. False where it is not the next unit, or there is no group."""
        if (
            commit.unit != self._ledger.unit
            or commit.unit >= self._schedule.num_units
            or not self._ledger.groups.members
        ):
            return False
        done = self._schedule.unit(commit.unit)
        self._log.append(done.kind, done.step, commit.metrics)
        self._ledger.adopt(commit.unit)
        self._ring()
        return True

    async def lose_store(self) -> int:
        """The store has lost every object: see `Ledger.lose_store`. Returns how many samples went back."""
        num_returned = self._ledger.lose_store(self._clock())
        self._ring()
        return num_returned

    async def run(self) -> None:
        """Let leases begin."""
        self._ledger.run()
        self._ring()

    async def drop_engine(self, engine: str, is_suspect: bool = False, life: float | None = None) -> int:
        """The engine is gone: its leases go back. Returns how many. See `Ledger.drop_engine`.

        life: where the engine itself says so. Else the controller does, and that life of it is not heard any more.
        Raises Replaced.
        """
        if life is None:
            self._lives.end(engine)
        else:
            self._lives.enter(engine, life)
        num_returned = self._ledger.drop_engine(engine, self._clock(), is_suspect=is_suspect)
        self._ring()
        return num_returned

    async def announce_stop(self, now: bool) -> int:
        """Fix the unit before which everything stops, and return it. now: without a checkpoint."""
        boundary = self._ledger.announce_stop(now)
        self._ring()
        return boundary

    async def view(self) -> LedgerView:
        """The counts and the newest figures."""
        train, validation = self._log.train.last, self._log.validation.last
        return replace(
            self._ledger.view(),
            last_metrics={key: value for key, value in train.items() if value is not None},
            last_validation={key: value for key, value in validation.items() if value is not None},
            checkpoint_step=self._checkpoint_step,
        )

    async def stop(self, grace_s: float = 0.0) -> None:
        """End the watch over leases and close the files; twice is fine."""
        if self._expiry is not None:
            self._expiry.cancel()
        await asyncio.to_thread(self._log.close)  # a tracker may take seconds to send what is left

    # -- engines ---------------------------------------------------------------------------------------------------

    async def lease(
        self, engine: str, max_samples: int, max_tokens: int, wait_s: float, life: float | None = None
    ) -> list[Lease]:
        """Samples to extract; waits up to ``wait_s`` for the first, then answers with none. Raises Replaced."""
        self._watch()
        end_s = time.monotonic() + min(wait_s, MAX_WAIT_S)
        while True:
            self._hear(engine, life)
            leases = self._ledger.lease(engine, max_samples, max_tokens, self._clock())
            if leases or not await self._leases_bell.wait(end_s - time.monotonic()):
                return leases

    async def report(
        self, engine: str, ready: Sequence[Ready], lost: Sequence[Lost], life: float | None = None
    ) -> list[str]:
        """What became of leases. Returns keys that the caller is to remove from the store. Raises Replaced."""
        self._hear(engine, life)
        num_before = self._ledger.num_regenerated
        unwanted = self._ledger.report(engine, ready, lost, self._clock())
        for gone in lost:
            logger.info("%s lost %s: %s", engine, gone.key, gone.reason)
        self._samples_bell.ring()
        if self._ledger.num_regenerated > num_before:
            self._ring()
        return unwanted

    def _hear(self, engine: str, life: float | None) -> None:
        """Go on where this life of the engine counts; leases of the one before it go back. Raises Replaced."""
        if life is not None and self._lives.enter(engine, life):
            self._ledger.drop_engine(engine, self._clock())
            self._ring()

    # -- ranks -----------------------------------------------------------------------------------------------------

    async def take(
        self, rank: str, unit: int, wait_s: float, generation: int | None = None, num_received: int | None = None
    ) -> TakeReply:
        """What is ready of the rank's share of ``unit``; waits up to ``wait_s`` for anything new. See `Ledger.take`.

        Answers at once where there are samples, where nothing more will come, and where the unit is not to be done.
        """
        self._watch()
        end_s = time.monotonic() + min(wait_s, MAX_WAIT_S)
        reply = self._ledger.take(rank, unit, generation, num_received)
        num_failed = len(reply.failed)
        while reply.kind == "samples" and not (reply.samples or reply.complete or len(reply.failed) > num_failed):
            if not await self._samples_bell.wait(end_s - time.monotonic()):
                break
            reply = self._ledger.take(rank, unit, generation, num_received)
        return reply

    async def lost(self, rank: str, lost: Sequence[Lost]) -> None:
        """Taken samples that could not be read, or are wrong: made anew."""
        self._ledger.lost(rank, lost, self._clock())
        self._ring()

    async def release(self, rank: str, keys: Sequence[str]) -> None:
        """Taken samples that were read, checked and removed from the store before their unit's commit."""
        self._ledger.release(rank, keys)
        self._leases_bell.ring()

    async def commit(self, commit: Commit) -> bool:
        """A unit is done. Its line is written before this answers True.

        False: it is not the next unit, not everything of it was handed out, or an older generation asks. A repeat of
        the last commit is answered True and changes nothing. Raises OSError if the line cannot be written; the unit
        then is not committed.
        """
        done = self._ledger.committable(commit.unit, commit.generation)
        if done is None:
            return self._ledger.was_committed(commit.unit, commit.generation)
        self._log.append(done.kind, done.step, commit.metrics)
        self._ledger.commit(commit.unit, commit.generation)
        self._ring()
        return True

    async def checkpointed(self, step: int) -> None:
        """A checkpoint of this step is on disk."""
        self._checkpoint_step = step

    # -- the loop --------------------------------------------------------------------------------------------------

    def _ring(self) -> None:
        """Something changed: wake who waits for samples or leases, and log samples that were given up."""
        for failed in self._ledger.pop_failures():
            logger.warning("sample %d of unit %d is given up: %s", failed.sample, failed.unit, failed.reason)
        self._samples_bell.ring()
        self._leases_bell.ring()

    def _watch(self) -> None:
        """Have leases expire from now on. Here and not in the constructor, which runs outside the event loop."""
        if self._expiry is None:
            self._expiry = asyncio.create_task(self._expire(), name="expire leases")

    async def _expire(self) -> None:
        while True:
            await asyncio.sleep(EXPIRE_EVERY_S)
            try:
                num_over = self._ledger.expire(self._clock())
            except Exception:
                logger.exception("leases could not be looked at")
                continue
            if num_over:
                logger.warning("%d leases ran out; they are leased again", num_over)
                self._ring()


def _read_lengths(path: str) -> NDArray[np.int64]:
    """Tokens of each row of the data set. Raises DataError."""
    file = Path(path) / "lengths.npy"
    try:
        return np.asarray(np.load(file), dtype=np.int64)
    except (OSError, ValueError) as error:
        remedy = "make the data set: dspark-train prepare --topology FILE"
        raise DataError([Problem(str(file), 0, "", f"cannot be read ({error})", remedy)]) from error


def _sample_bytes(resolved: Resolved, layout: RunLayout) -> Callable[[int], int]:
    """Tokens -> bytes in the store. Raises TopologyError while the target's hidden size is unknown."""
    bytes_per_token = resolved.bytes_per_token
    if bytes_per_token is None:
        text = "is not known, so samples cannot be counted in bytes"
        remedy = "set it, or give a target whose config.json can be read"
        raise TopologyError([Problem(str(layout.topology), 0, "target.shape.hidden_size", text, remedy)])
    return lambda num_tokens: SampleLayout(num_tokens, bytes_per_token).total_bytes


def _rule(resolved: Resolved, layout: RunLayout) -> LedgerRule:
    """The settings; the keys' incarnation is drawn anew, so objects of an earlier life are never taken for new."""
    settings = resolved.topology.ledger
    return LedgerRule(
        key_prefix=key_prefix(layout.name, secrets.token_hex(4)),
        lease_s=settings.lease_s,
        max_attempts=settings.max_attempts,
        max_failed_frac=settings.max_failed_frac,
        high_mark_frac=resolved.topology.store.high_mark_frac,
    )
