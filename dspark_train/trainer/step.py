"""One unit of training: forward and backward over this rank's packs, one exchange, one optimizer step.

What a step computes does not depend on how its packs are shared out: every pack's loss weighs 1 / num_packs, its random
draws are seeded by its place in the schedule, and the figures logged are sums over all packs.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from dspark_train.errors import WrongData
from dspark_train.schedule.messages import TakeReply
from dspark_train.schedule.seeds import draw_seed, pack_digest, step_hash
from dspark_train.schedule.unit import Pack, Unit, rank_packs
from dspark_train.trainer.drafts import Batch
from dspark_train.trainer.packs import TokenRows, loss_mask_row, on_device, padding, preprocessed
from dspark_train.trainer.process_group import ProcessGroup
from dspark_train.trainer.ring import PackShape, Slot
from dspark_train.trainer.state import TrainState
from dspark_train.trainer.tally import Tally

MAX_GRAD_NORM = 1.0
"""As in speculators' trainer."""


class Ended(Exception):
    """The ledger ends the run's units here: the unit in hand is not to be done."""

    def __init__(self, reply: TakeReply) -> None:
        super().__init__(reply.kind)
        self.reply = reply


class Source(Protocol):
    """Where packs come from, as a unit sees it. Any of these may raise what ends the rank."""

    def get(self, unit: int, pack: int) -> Slot:
        """The full slot of a pack of a unit, as long as that takes. Raises Ended."""
        ...

    def release(self, slot: Slot) -> None:
        """The slot is not read any more."""
        ...

    def ended(self, unit: int) -> TakeReply | None:
        """The ledger's word that this unit is not to be done, as far as it is known."""
        ...

    def in_store_s(self, unit: int) -> float | None:
        """Since when (monotonic) this rank's samples of the unit are all in the store; None while one is to be made."""
        ...


def autocast(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """What forward passes compute in: bfloat16 on CUDA, what the weights are on CPU."""
    return contextlib.nullcontext() if device.type == "cpu" else torch.autocast("cuda", dtype=torch.bfloat16)


@dataclass(frozen=True)
class UnitResult:
    """What came of a unit. metrics: for metrics.jsonl, without times; num_tokens: this rank's.

    wait_s: for samples, and for other ranks to come to their exchanges; fetch_s: the part of it in which every sample
    of this rank was in the store.
    """

    metrics: dict[str, float | int | str]
    num_tokens: int
    wait_s: float
    fetch_s: float = 0.0


class UnitRunner:
    """Does units with one group's state."""

    def __init__(
        self,
        state: TrainState,
        group: ProcessGroup,
        rows: TokenRows,
        shape: PackShape,
        seed: int,
        settle: Callable[[], None] = lambda: None,
    ) -> None:
        """settle: returns once the ledger has the unit before; called before anything of a unit takes effect."""
        self._state, self._group, self._rows, self._shape, self._seed = state, group, rows, shape, seed
        self._settle = settle
        self._wait_s = self._fetch_s = 0.0

    def run(self, unit: Unit, source: Source) -> UnitResult:
        """Train or validate a unit together with all ranks.

        Raises Ended where the run ends before it, WrongData naming step and packs where a loss or the gradients are
        not finite; the optimizer then has not stepped.
        """
        self._wait_s = self._fetch_s = 0.0
        num_packs = len(unit.packs)
        tally = Tally(num_packs)
        is_training = unit.kind == "train"
        self._state.model.train(is_training)
        if is_training:
            self._state.zero_grad()
        with torch.set_grad_enabled(is_training):
            self._passes(unit, source, tally)
        if not self._state.is_sharded:
            self._agree(unit, source)
        if is_training:
            self._state.exchange_gradients()
        tally.exchange(self._group)
        self._group.check()
        self._check_losses(unit, tally)
        metrics: dict[str, float | int | str] = {"step": unit.step, "epoch": unit.epoch, **tally.metrics()}
        metrics["data_hash"] = step_hash(tally.digests())
        if is_training:
            metrics |= self._state.learning_rates()
            metrics["grad_norm"] = self._update(unit)
        metrics |= {"num_ranks": self._group.world_size, "generation": self._group.spec.generation}
        return UnitResult(metrics, tally.own_tokens, self._wait_s, self._fetch_s)

    def _passes(self, unit: Unit, source: Source, tally: Tally) -> None:
        """Forward (and backward) over the own packs; a sharded draft needs equally many passes on every rank."""
        num_packs, world_size = len(unit.packs), self._group.world_size
        own = rank_packs(num_packs, world_size, self._group.rank)
        num_passes = -(-num_packs // world_size) if self._state.is_sharded else len(own)
        for index in range(num_passes):
            pack = own[index] if index < len(own) else None
            slot = None if pack is None else self._get(unit, pack, source)
            try:
                if self._state.is_sharded:
                    self._agree(unit, source)
                self._one_pass(unit, pack, slot, tally)
            finally:
                if slot is not None:
                    source.release(slot)

    def _one_pass(self, unit: Unit, pack: int | None, slot: Slot | None, tally: Tally) -> None:
        """One forward and backward pass; without a pack over padding, with weight zero."""
        is_training = unit.kind == "train"
        if pack is None or slot is None:
            batch = padding(self._state.draft, self._shape, self._group.device)
        else:
            batch = self._batch(unit.packs[pack], slot)
            torch.manual_seed(draw_seed(self._seed, unit.epoch, unit.step, pack) if is_training else self._fixed(pack))
        draft = self._state.draft
        kwargs = draft.train_kwargs if is_training else draft.validate_kwargs
        with autocast(self._group.device):
            outputs, loss, sums = self._state.model(**batch, **kwargs)
        if is_training:
            weight = 0.0 if pack is None else self._state.loss_weight(len(unit.packs))
            self._state.backward(loss, weight)
        if pack is not None and slot is not None:
            tally.add(pack, loss, draft.figures(outputs, batch, sums), *self._identity(unit.packs[pack], slot))

    def _fixed(self, pack: int) -> int:
        """Validation draws the same in every round, so that its figures can be compared."""
        return draw_seed(self._seed, 0, 0, pack)

    def _batch(self, pack: Pack, slot: Slot) -> Batch:
        masks = [self._rows.loss_mask(piece.sample) for piece in pack.pieces]
        small = loss_mask_row(pack.pieces, masks, slot.failed, self._shape.seq_len)
        batch = on_device(slot, small, self._group.device)
        if self._state.draft.preprocess is None:
            return batch
        return preprocessed(self._state.draft, batch, pack.pieces, slot.failed)

    def _identity(self, pack: Pack, slot: Slot) -> tuple[bytes, int]:
        """The pack's digest over what is trained, and its tokens; samples given up are in neither."""
        good = [piece for index, piece in enumerate(pack.pieces) if index not in slot.failed]
        ids = slot.token_ids.numpy()
        digest = pack_digest((p.sample, ids[p.start_row : p.start_row + p.num_tokens].tobytes()) for p in good)
        return digest, sum(piece.num_tokens for piece in good)

    def _update(self, unit: Unit) -> float:
        norm = self._state.clip_grad_norm(MAX_GRAD_NORM)
        self._group.check()
        if not torch.isfinite(torch.tensor(norm)):
            names = ", ".join(str(pack.index) for pack in unit.packs)
            raise WrongData(
                f"step {unit.step}: the gradients are not finite (norm {norm}) though every loss is; packs {names} of "
                f"epoch {unit.epoch}. The step was not taken: lower the learning rate, or look at those samples"
            )
        self._state.advance()
        return norm

    def _check_losses(self, unit: Unit, tally: Tally) -> None:
        bad = tally.not_finite()
        if bad:
            packs = ", ".join(
                f"{unit.packs[i].index} (samples {[p.sample for p in unit.packs[i].pieces]})" for i in bad
            )
            raise WrongData(
                f"{unit.kind} unit {unit.index}, step {unit.step}: the loss is not finite for packs {packs} of epoch "
                f"{unit.epoch}. The step was not taken: look at those samples, or lower the learning rate"
            )

    # -- waiting -----------------------------------------------------------------------------------------------------

    def _get(self, unit: Unit, pack: int, source: Source) -> Slot:
        began_s = time.monotonic()
        slot = source.get(unit.index, pack)
        ended_s, in_store_s = time.monotonic(), source.in_store_s(unit.index)
        self._wait_s += ended_s - began_s
        if in_store_s is not None:
            self._fetch_s += max(0.0, ended_s - max(began_s, in_store_s))
        return slot

    def _agree(self, unit: Unit, source: Source) -> None:
        self._settle()  # no wait for samples: more engines would not shorten it
        if not self._timed(lambda: self._group.agree(lambda: source.ended(unit.index) is not None)):
            reply = source.ended(unit.index)
            assert reply is not None
            raise Ended(reply)
        self._state.uncommitted = None  # rank 0 is here only once the ledger has the unit before

    def _timed(self, wait: Callable[[], Any]) -> Any:
        began_s = time.monotonic()
        try:
            return wait()
        finally:
            self._wait_s += time.monotonic() - began_s
