"""What a draft does at inference, whatever its algorithm: read verified tokens, and propose the next ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from dspark_train.errors import UsageError
from dspark_train.evaluate.dice import Chooser


class Proposal(NamedTuple):
    """Drafted tokens of each row.

    ids: [rows, drafted], of the target's vocabulary. probs: [rows, drafted, target's vocabulary] that they were drawn
    from; None where each is the most likely one. confidence: [rows, drafted] logits of the confidence head, or None.
    """

    ids: Tensor
    probs: Tensor | None
    confidence: Tensor | None


class Drafter(Protocol):
    """A draft over a batch. ``start`` comes first, then ``read`` of the prompts, then ``propose`` and ``read`` in turn.

    num_tokens: how many it proposes at a time.
    """

    num_tokens: int

    def start(self, num_rows: int) -> None:
        """Forget everything, for a new batch."""

    def read(self, hidden: Tensor, next_ids: Tensor, positions: Tensor, valid: Tensor) -> None:
        """Take in verified tokens.

        hidden: [rows, tokens, layers read x hidden size] of the target. next_ids: [rows, tokens], the token that
        follows each. positions, valid: [rows, tokens]; what is not valid is padding, or was refused.
        """

    def propose(self, last_ids: Tensor, positions: Tensor, chooser: Chooser) -> Proposal:
        """Draft what follows ``last_ids`` [rows], which stand at ``positions`` [rows] and were not read yet."""

    def keep_rows(self, rows: Tensor) -> None:
        """Leave out every other row. rows: their indices."""


class Vocabulary:
    """The draft's token ids in the target's vocabulary. offsets: [draft's vocabulary], None where it is the same."""

    def __init__(self, offsets: Tensor | None, target_size: int) -> None:
        self._ids = None if offsets is None else torch.arange(len(offsets), device=offsets.device) + offsets
        self._target_size = target_size

    def to_target(self, ids: Tensor) -> Tensor:
        return ids if self._ids is None else self._ids[ids]

    def spread(self, probs: Tensor) -> Tensor:
        """Probabilities [..., draft's vocabulary] over the target's."""
        if self._ids is None:
            return probs
        out = probs.new_zeros(*probs.shape[:-1], self._target_size)
        out[..., self._ids] = probs
        return out


def weights_in(model: Any, dtype: torch.dtype) -> Any:
    """The draft with its weights in another type; the rotary frequencies stay in float32, as in training."""
    for weight in model.parameters():
        weight.data = weight.data.to(dtype)
    return model


def make_drafter(model: Any, num_tokens: int | None = None) -> Drafter:
    """The drafter of a draft loaded by speculators. num_tokens: fewer than it was trained for, if given.

    Raises UsageError where this algorithm has no reference here.
    """
    from dspark_train.evaluate.block_drafter import BlockDrafter
    from dspark_train.evaluate.eagle_drafter import EagleDrafter

    kinds: dict[str, Callable[[Any, int], Drafter]] = {
        "dflash": BlockDrafter,
        "dspark": BlockDrafter,
        "eagle3": EagleDrafter,
    }
    algorithm = str(model.config.speculators_config.algorithm)
    if algorithm not in kinds:
        raise UsageError(
            f"no reference drafts as {algorithm} does (there is one for {', '.join(kinds)}): use --method served"
        )
    most = int(model.config.speculators_config.proposal_methods[0].speculative_tokens)
    if num_tokens is not None and num_tokens > most and algorithm != "eagle3":
        raise UsageError(f"the draft proposes at most {most} tokens at a time: --num-tokens {num_tokens} is above that")
    return kinds[algorithm](model, num_tokens or most)
