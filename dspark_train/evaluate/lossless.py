"""Whether greedy output is the target's own: every token must be its most likely one after all before it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from dspark_train.evaluate.reference import Generated
from dspark_train.evaluate.target import Target


@dataclass(frozen=True)
class Lossless:
    """num_differing: tokens not the target's first choice. max_gap: the largest lead of that choice, in logits.

    Two choices closer to each other than floating point resolves may change places between a pass over one token and
    one over nine; a larger gap means that verification is wrong.
    """

    num_tokens: int = 0
    num_differing: int = 0
    max_gap: float = 0.0

    def __add__(self, other: Lossless) -> Lossless:
        return Lossless(
            self.num_tokens + other.num_tokens,
            self.num_differing + other.num_differing,
            max(self.max_gap, other.max_gap),
        )

    def as_json(self) -> dict[str, Any]:
        return {"num_tokens": self.num_tokens, "num_differing": self.num_differing, "max_gap": self.max_gap}


def check_greedy(target: Target, generated: Iterable[Generated]) -> Lossless:
    """One pass of the target over each text, without a draft and without a cache of earlier passes."""
    return sum((_check(target, one) for one in generated), Lossless())


def _check(target: Target, one: Generated) -> Lossless:
    prompt, new = one.prompt.ids, torch.tensor(one.ids, device=target.device)
    logits = target.over((*prompt, *one.ids[:-1]), len(new))
    best = logits.max(dim=-1).values
    gap = best - logits.gather(1, new.unsqueeze(1)).squeeze(1)
    return Lossless(len(new), int((gap > 0).sum()), float(gap.max()))
