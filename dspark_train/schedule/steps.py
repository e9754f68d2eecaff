"""The whole schedule of a run, from lengths, seed and topology alone: which packs each step trains, in which order.

Pure and lazy. Step k (from 1) trains the packs (k - 1) * step_packs .. k * step_packs of the endless stream of epochs,
whatever the number of ranks. Validation rounds stand before step 1, after every `validate_every_steps` steps, and after
the last step.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dspark_train.errors import DataError, Problem
from dspark_train.schedule.packing import pack_rows
from dspark_train.schedule.shuffle import split_rows
from dspark_train.schedule.stream import PackStream
from dspark_train.schedule.unit import Pack, Unit
from dspark_train.topology.schema import Topology


@dataclass(frozen=True, eq=False)
class ScheduleSpec:
    """Everything the schedule follows from. At least one of max_steps and epochs is set; the first to come ends it."""

    lengths_tokens: NDArray[np.int64]
    """One a row of the data set; rows without tokens are left out."""
    seq_len: int
    step_packs: int
    seed: int
    max_steps: int | None = None
    epochs: int | None = None
    validation_frac: float = 0.0
    validate_every_steps: int = 200
    max_validation_packs: int | None = None

    @classmethod
    def of(cls, topology: Topology, lengths_tokens: NDArray[np.int64]) -> ScheduleSpec:
        """What the topology says of the schedule of this data set."""
        return cls(
            lengths_tokens=lengths_tokens,
            seq_len=topology.data.seq_len,
            step_packs=topology.data.step_packs,
            seed=topology.run.seed,
            max_steps=topology.run.max_steps,
            epochs=topology.run.epochs,
            validation_frac=topology.data.validation_frac,
            validate_every_steps=topology.validation.every_steps,
            max_validation_packs=topology.validation.max_packs,
        )


class Schedule:
    """Steps and validation rounds as numbered units. Not thread-safe: it keeps the last epochs packed."""

    def __init__(self, spec: ScheduleSpec) -> None:
        """Raises DataError if there is no sample with tokens, ValueError if nothing says where the run ends."""
        if spec.max_steps is None and spec.epochs is None:
            raise ValueError("a schedule needs max_steps or epochs")
        lengths = np.asarray(spec.lengths_tokens, dtype=np.int64)
        rows = np.flatnonzero(lengths > 0)
        if not len(rows):
            remedy = "prepare it again, and read what `prepare` skips and why"
            raise DataError(
                [Problem("the data set", 0, "", f"has no sample with tokens ({len(lengths)} rows)", remedy)]
            )
        train, held = split_rows(spec.seed, len(rows), spec.validation_frac)
        self.spec = spec
        self.validation_packs = _validation_packs(lengths, rows[held], spec)
        self._stream = PackStream(lengths, rows[train], spec.seq_len, spec.seed)
        self._num_packs: int | None = None if spec.epochs is None else self._packs_of_epochs(spec.epochs)
        all_steps = None if self._num_packs is None else -(-self._num_packs // spec.step_packs)
        self.num_steps = min(steps for steps in (all_steps, spec.max_steps) if steps is not None)

    @property
    def num_units(self) -> int:
        """Steps and validation rounds of the whole run."""
        if not self.validation_packs:
            return self.num_steps
        return self.num_steps + 1 - (-self.num_steps // self.spec.validate_every_steps)

    def unit(self, index: int) -> Unit:
        """Unit ``index``. Raises IndexError beyond the last."""
        if not 0 <= index < self.num_units:
            raise IndexError(index)
        steps, rounds = self._done_before(index)
        if self._done_before(index + 1)[1] > rounds:
            return Unit(index, "validate", steps, self.epoch_of_step(max(steps, 1)), self.validation_packs)
        first, last = self._positions(steps + 1)
        packs = tuple(self._stream.pack(position) for position in range(first, last))
        return Unit(index, "train", steps + 1, packs[0].epoch, packs)

    def unit_of_step(self, step: int) -> int:
        """The index of the unit that trains ``step`` (1 .. num_steps)."""
        if not self.validation_packs:
            return step - 1
        return step + (step - 1) // self.spec.validate_every_steps

    def validates_after(self, step: int) -> bool:
        """Whether a validation round follows ``step`` (0: before the first)."""
        falls_due = step % self.spec.validate_every_steps == 0 or step == self.num_steps
        return bool(self.validation_packs) and falls_due and step <= self.num_steps

    def first_unit_after_step(self, step: int, *, validated: bool = True) -> int:
        """The next unit to do once ``step`` (0: none) is trained.

        validated: whether the validation round that follows the step, if any, has been done as well. A checkpoint at
        the same step is taken after it, so that is the usual case; a run stopped between the two does the round first.
        Rounds train nothing and draw the same each time, so neither case changes a later step.
        """
        if step > self.num_steps:
            return self.num_units
        rounds = self.validates_after(step)
        after = self.num_units if step == self.num_steps else self.unit_of_step(step + 1)
        return after if validated else after - rounds

    def epoch_of_step(self, step: int) -> int:
        """The epoch of the first pack of ``step``."""
        return self._stream.epoch_at(self._positions(step)[0])

    def num_steps_before(self, unit: int) -> int:
        """Training steps before ``unit`` (which may be num_units): the last one done when ``unit`` is next."""
        return self._done_before(unit)[0]

    def num_samples_before(self, unit: int) -> int:
        """Samples of all units before ``unit`` (which may be num_units): each use counts, validation included.

        Packs every epoch up to there once.
        """
        steps, rounds = self._done_before(unit)
        held = sum(len(pack.pieces) for pack in self.validation_packs)
        trained = self._stream.num_samples_before(self._positions(steps)[1]) if steps else 0
        return trained + rounds * held

    def _packs_of_epochs(self, epochs: int) -> int:
        """Packs of all epochs, or those that max_steps leaves of them."""
        most = None if self.spec.max_steps is None else self.spec.max_steps * self.spec.step_packs
        num_packs = 0
        for epoch in range(1, epochs + 1):
            num_packs = self._stream.start_of(epoch)
            if most is not None and num_packs >= most:
                return most
        return num_packs

    def _positions(self, step: int) -> tuple[int, int]:
        last = step * self.spec.step_packs
        return last - self.spec.step_packs, last if self._num_packs is None else min(last, self._num_packs)

    def _done_before(self, index: int) -> tuple[int, int]:
        """Steps and validation rounds before unit ``index``."""
        if not self.validation_packs or index == 0:
            return index, 0
        every = self.spec.validate_every_steps
        rounds, rest = divmod(index - 1, every + 1)
        steps = min(rounds * every + rest, self.num_steps)
        return steps, index - steps


def _validation_packs(lengths: NDArray[np.int64], held: NDArray[np.int64], spec: ScheduleSpec) -> tuple[Pack, ...]:
    """The held-out samples in packs, the same in every round, cut to the most that a round may have."""
    if not len(held):
        return ()
    packs = pack_rows(lengths, held, spec.seq_len)
    return tuple(packs[index] for index in range(min(len(packs), spec.max_validation_packs or len(packs))))
