"""Writing and reading checkpoints: torch's distributed checkpoint (DCP), beside training, verified when read.

The state is copied to host memory, training goes on, and a thread writes the copy: rank 0 alone where every rank holds
the whole state, each rank its shards otherwise. States are keyed by weight names, so any number of ranks can read them.
What files are and when they count is `checkpoint_files`; a write that fails is recorded and costs no training.
"""

from __future__ import annotations

import functools
import logging
import shutil
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

from dspark_train.errors import CheckpointError
from dspark_train.trainer.checkpoint_files import Found, Meta, find_latest, partial_dir, problems, prune, publish
from dspark_train.trainer.process_group import ProcessGroup
from dspark_train.trainer.state import TrainState

# torch says so whenever one process saves or loads alone, which is meant here.
warnings.filterwarnings("ignore", "torch.distributed is disabled, unavailable or uninitialized")
LOOK_S = 0.1
"""How often a wait for a write looks whether the rank is to end."""
LOAD_ERRORS = (OSError, RuntimeError, ValueError, KeyError, TypeError, EOFError, dcp.api.CheckpointException)
WRITE_ERRORS = (OSError, RuntimeError, ValueError, dcp.api.CheckpointException)


class Checkpointer:
    """Saves a group's state; one write at a time. Every rank has one and calls it at the same units."""

    def __init__(
        self,
        root: Path,
        keep: int,
        keep_best: bool,
        timeout_s: float,
        group: ProcessGroup,
        on_durable: Callable[[int], None],
        log: logging.Logger,
    ) -> None:
        """on_durable: called with the step, on rank 0 and in the writing thread, once a checkpoint is on disk."""
        self._root, self._keep, self._keep_best = root, keep, keep_best
        self._timeout_s, self._group = timeout_s, group
        self._on_durable, self._log = on_durable, log
        self._stager = DefaultStager(StagingOptions(False, False, False, False))
        self._thread: threading.Thread | None = None
        self.error = ""
        """Why the last write failed; "" where it did not."""
        self.started_step: int | None = None
        """The last step whose writing was begun (on any rank)."""
        self.last_step: int | None = None
        self.last_at_s: float | None = None
        """Unix time."""

    def save(self, state: TrainState, meta: Meta) -> None:
        """Copy the state now and write it beside training. Waits for the write before, if that is still going on.

        Raises CheckpointError where that one does not end in time.
        """
        self.wait()
        assert state.step > 0, "before the first step there is nothing to save"
        self.started_step = meta.step
        if not state.is_sharded and self._group.rank != 0:
            return
        named = {**state.named(), "rng": {"torch": torch.get_rng_state()}}
        staged = self._stager.stage(named)
        self._thread = threading.Thread(
            target=self._write, args=(staged, meta, state.is_sharded), name="checkpoint", daemon=True
        )
        self._thread.start()

    def wait(self, ended: Callable[[], bool] = lambda: False) -> None:
        """Until nothing is being written, or ``ended()``. Raises CheckpointError after the checkpoint's time-out."""
        if self._thread is None:
            return
        limit_s = time.monotonic() + self._timeout_s
        while self._thread.is_alive() and time.monotonic() < limit_s:
            if ended():
                return
            self._thread.join(LOOK_S)
        if self._thread.is_alive():
            raise CheckpointError(
                f"writing a checkpoint to {self._root} takes longer than checkpoint.timeout_s ({self._timeout_s:g} s): "
                "is the disk hanging? Raise it if the state is large"
            )
        self._thread = None

    def close(self) -> None:
        """Give the copy's memory back. Only when nothing is being written."""
        self._stager.close()

    # -- the writing thread ------------------------------------------------------------------------------------------

    def _write(self, staged: dict[str, Any], meta: Meta, sharded: bool) -> None:
        began_s = time.monotonic()
        partial = partial_dir(self._root, meta.step)
        together = sharded and self._group.world_size > 1
        phases = [
            functools.partial(self._make_room, partial),
            functools.partial(self._save_files, staged, partial, together),
            functools.partial(self._publish, meta),
        ]
        for phase in phases:
            if error := self._outcome(self._tried(phase), together):
                self._fail(meta.step, partial, error)
                return
        self.error, self.last_step, self.last_at_s = "", meta.step, time.time()
        self._log.info("checkpoint of step %d written in %.2f s", meta.step, time.monotonic() - began_s)
        if self._group.rank == 0:
            self._on_durable(meta.step)
            self._prune()

    def _make_room(self, partial: Path) -> None:
        if self._group.rank == 0:
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)

    def _save_files(self, staged: dict[str, Any], partial: Path, together: bool) -> None:
        dcp.save(
            staged,
            storage_writer=FileSystemWriter(partial, sync_files=True),
            no_dist=not together,
            process_group=self._group.writers if together else None,
        )

    def _publish(self, meta: Meta) -> None:
        if self._group.rank == 0:
            publish(self._root, replace(meta, saved_at_s=time.time()))

    def _tried(self, phase: Callable[[], None]) -> str:
        """Do it; returns what went wrong, or ""."""
        try:
            phase()
        except WRITE_ERRORS as error:
            return f"{type(error).__name__}: {error}"
        return ""

    def _outcome(self, own: str, together: bool) -> str:
        """What went wrong on any rank: none may go on to a collective that another does not reach."""
        if not together:
            return own
        errors: list[str] = [""] * self._group.world_size
        try:
            dist.all_gather_object(errors, own, group=self._group.writers)
        except RuntimeError as error:
            return own or f"a rank was lost meanwhile: {error}"
        return next((error for error in errors if error), "")

    def _fail(self, step: int, partial: Path, error: str) -> None:
        self.error = f"the checkpoint of step {step} could not be written to {partial}: {error}"
        self._log.error("%s; training goes on", self.error)
        if self._group.rank == 0:
            shutil.rmtree(partial, ignore_errors=True)

    def _prune(self) -> None:
        try:
            removed = prune(self._root, self._keep, keep_best=self._keep_best)
        except OSError as error:
            self._log.warning("old checkpoints in %s could not be removed: %s", self._root, error)
            return
        if removed:
            self._log.info("removed the checkpoints of steps %s", removed)


def load(found: Found, state: TrainState, group: ProcessGroup) -> Meta:
    """Load a checkpoint into the state, on every rank. Its files are verified first.

    Raises CheckpointError, on every rank alike, saying what is wrong with it; the state must then not be trained on.
    """
    verdict = group.broadcast_object(problems(found.path) if group.rank == 0 else None)
    if not verdict:
        verdict = [text for text in group.gather_objects(_load_error(found, state, group)) if text]
    if verdict:
        raise CheckpointError(f"the checkpoint {found.path} cannot be loaded: " + "; ".join(verdict))
    return found.meta()


def _load_error(found: Found, state: TrainState, group: ProcessGroup) -> str:
    if not state.is_sharded and group.rank != 0:
        return ""
    together = state.is_sharded and group.world_size > 1
    try:
        saved = {**state.named(), "rng": {"torch": torch.get_rng_state()}}
        read(saved, found.path, group.writers if together else None)
        state.load(saved, found.step)
        torch.set_rng_state(saved["rng"]["torch"])
    except LOAD_ERRORS as error:
        return f"{type(error).__name__}: {error}"
    return ""


def read(into: dict[str, Any], path: Path, process_group: Any = None) -> None:
    """Read the parts of a checkpoint that ``into`` names, in place; alone, or together with a process group."""
    dcp.load(into, storage_reader=FileSystemReader(path), no_dist=process_group is None, process_group=process_group)


def load_newest(root: Path, attempt: Callable[[Found], None], step: int | None = None) -> tuple[Found, list[str]]:
    """Try the checkpoints from the newest (or from that of ``step``, alone) until ``attempt`` takes one.

    attempt: loads it, or raises CheckpointError. Returns what was loaded, and why newer ones were rejected. Raises
    CheckpointError where none loads: never a reason to start afresh.
    """
    rejected: list[str] = []
    candidates = [found for found in find_latest(root) if step is None or found.step == step]
    for found in candidates:
        wrong = problems(found.path)
        if not wrong:
            try:
                attempt(found)
            except CheckpointError as error:
                wrong = [str(error)]
            else:
                return found, rejected
        rejected += wrong
    wanted = "no checkpoint" if step is None else f"no checkpoint of step {step}"
    raise CheckpointError(f"{root}: {wanted} that loads" + (": " + "; ".join(rejected) if rejected else " is there"))
