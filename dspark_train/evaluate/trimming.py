"""What it would save to verify only drafted tokens that are likely to stand: an estimate from recorded verifications.

The rule is the one of vLLM 0.32's adaptive verification: of all requests' drafted tokens together, those most likely to
stand (by the product of confidences up to them) are verified, as many as give the most tokens a second by what a
step is known to cost. Pure; groups of requests are drawn with a seeded generator.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dspark_train.evaluate.calibration import Floats

NUM_GROUPS = 200


@dataclass(frozen=True)
class StepCost:
    """What a step over so many tokens takes: straight lines between points (tokens, ms), and on past the last."""

    points: tuple[tuple[float, float], ...]

    def ms(self, num_tokens: Floats) -> Floats:
        """The cost of each number of tokens; never less than a smaller step's."""
        xs, ys = (np.array(each, dtype=np.float64) for each in zip(*sorted(self.points), strict=True))
        ys = np.maximum.accumulate(ys)
        out = np.interp(num_tokens, xs, ys)
        if len(xs) > 1:
            rise = (ys[-1] - ys[-2]) / (xs[-1] - xs[-2])
            out = np.where(num_tokens > xs[-1], ys[-1] + rise * (num_tokens - xs[-1]), out)
        return np.asarray(out)


@dataclass(frozen=True)
class Trimming:
    """One load, trimmed against whole. load: requests at a time.

    verified_frac: drafted tokens still verified. accept_len, whole_accept_len: tokens of one verification with trimming
    and without. speedup: of tokens a second; 1.05 is five percent more.
    """

    load: int
    verified_frac: float
    accept_len: float
    whole_accept_len: float
    speedup: float

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def admitted(survival: Floats, cost: StepCost) -> NDArray[np.int64]:
    """How many drafted tokens of each request are verified: [requests].

    survival: [requests, drafted], never rising along a request: so the best tokens of all are each request's first.
    """
    num_requests, num_drafted = survival.shape
    order = np.argsort(-survival, axis=None, kind="stable")
    expected = num_requests + np.concatenate(([0.0], survival.ravel()[order].cumsum()))
    per_ms = expected / cost.ms(num_requests + np.arange(expected.size, dtype=np.float64))
    taken = order[: int(per_ms.argmax())]
    return np.bincount(taken // num_drafted, minlength=num_requests).astype(np.int64)


def estimate(probs: Floats, accepted: Sequence[int], load: int, cost: StepCost, seed: int = 0) -> Trimming:
    """Draw groups of ``load`` verifications and play each of them trimmed and whole.

    probs: [verifications, drafted] confidences, calibrated if they can be. accepted: how many tokens stood in each.
    """
    drawn = np.random.default_rng(seed)
    counts, survival = np.asarray(accepted, dtype=np.int64), probs.cumprod(axis=1)
    num_drafted = probs.shape[1]
    verified = tokens = whole_tokens = time_ms = whole_ms = 0.0
    for _ in range(NUM_GROUPS):
        group = drawn.integers(0, len(counts), load)
        kept = admitted(survival[group], cost)
        verified += float(kept.sum())
        tokens += load + float(np.minimum(kept, counts[group]).sum())
        whole_tokens += load + float(counts[group].sum())
        steps = np.array([load + kept.sum(), load * (1 + num_drafted)], dtype=np.float64)
        trimmed_ms, all_ms = cost.ms(steps)
        time_ms, whole_ms = time_ms + float(trimmed_ms), whole_ms + float(all_ms)
    num = NUM_GROUPS * load
    return Trimming(
        load=load,
        verified_frac=verified / (num * num_drafted),
        accept_len=tokens / num,
        whole_accept_len=whole_tokens / num,
        speedup=(tokens / time_ms) / (whole_tokens / whole_ms),
    )
