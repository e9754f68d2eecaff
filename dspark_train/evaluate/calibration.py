"""Whether the confidence head says how likely a drafted token is to be accepted. Pure.

Everything here is over *verifications*: logits [verifications, drafted] of the head, and how many tokens stood in each.
A position is judged only where all before it stood, for that is what the head predicts and what an engine multiplies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
NUM_BINS = 10
MIN_TEMPERATURE, MAX_TEMPERATURE = 0.05, 20.0
NUM_HALVINGS = 60


@dataclass(frozen=True)
class Bin:
    """Drafted tokens whose confidence lies in one tenth: their mean confidence, and the part that was accepted."""

    num: int
    mean_confidence: float
    accepted_frac: float


@dataclass(frozen=True)
class Reliability:
    """How one position's confidence compares with what happened. ece: the expected calibration error."""

    num: int
    mean_confidence: float
    accepted_frac: float
    ece: float
    bins: tuple[Bin, ...]

    def as_json(self) -> dict[str, Any]:
        bins = [[bin_.num, bin_.mean_confidence, bin_.accepted_frac] for bin_ in self.bins]
        return {
            "num": self.num,
            "mean_confidence": self.mean_confidence,
            "accepted_frac": self.accepted_frac,
            "ece": self.ece,
            "bins": bins,
        }


def confidences(logits: Floats, temperature: float = 1.0) -> Floats:
    """Probabilities that logits stand for, softened (above 1) or sharpened by a temperature."""
    scaled = np.asarray(logits, dtype=np.float64) / temperature
    return np.asarray(np.exp(-np.logaddexp(0.0, -scaled)))


def reached(accepted: Sequence[int], num_drafted: int) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """[verifications, drafted] each: where all tokens before stood, and where the token itself stood as well."""
    counts = np.asarray(accepted, dtype=np.int64)[:, None]
    positions = np.arange(num_drafted)[None, :]
    return positions <= counts, positions < counts


def reliability(probs: Floats, outcomes: NDArray[np.bool_], num_bins: int = NUM_BINS) -> Reliability:
    """Bins of equal width, empty ones left out; the error is the mean gap, bins weighing by what is in them."""
    if not len(probs):
        return Reliability(0, 0.0, 0.0, 0.0, ())
    places = np.minimum((probs * num_bins).astype(np.int64), num_bins - 1)
    bins = []
    for place in range(num_bins):
        inside = places == place
        if inside.any():
            bins.append(Bin(int(inside.sum()), float(probs[inside].mean()), float(outcomes[inside].mean())))
    ece = sum(each.num * abs(each.mean_confidence - each.accepted_frac) for each in bins) / len(probs)
    return Reliability(len(probs), float(probs.mean()), float(outcomes.mean()), float(ece), tuple(bins))


def by_position(probs: Floats, accepted: Sequence[int]) -> tuple[Reliability, ...]:
    """The reliability of each drafted position."""
    there, stood = reached(accepted, probs.shape[1])
    return tuple(reliability(probs[there[:, k], k], stood[there[:, k], k]) for k in range(probs.shape[1]))


def overall(probs: Floats, accepted: Sequence[int]) -> Reliability:
    """The reliability over all positions together."""
    there, stood = reached(accepted, probs.shape[1])
    return reliability(probs[there], stood[there])


def prefix_products(probs: Floats, accepted: Sequence[int]) -> tuple[tuple[float, float], ...]:
    """Of each position: how often all up to it are said to stand (the mean product), and how often they did."""
    _, stood = reached(accepted, probs.shape[1])
    said, did = probs.cumprod(axis=1).mean(axis=0), stood.mean(axis=0)
    return tuple((float(a), float(b)) for a, b in zip(said, did, strict=True))


def fit_temperature(logits: Floats, accepted: Sequence[int]) -> float:
    """The temperature of least log loss, within bounds; 1.0 where nothing was verified.

    The loss is convex in 1/temperature, so its slope is halved in on. Temperature scaling as in arXiv 1706.04599.
    """
    there, stood = reached(accepted, logits.shape[1])
    z, y = np.asarray(logits, dtype=np.float64)[there], stood[there].astype(np.float64)
    if not len(z):
        return 1.0

    def slope(sharpness: float) -> float:
        return float(((confidences(z, 1 / sharpness) - y) * z).sum())

    low, high = 1 / MAX_TEMPERATURE, 1 / MIN_TEMPERATURE
    for _ in range(NUM_HALVINGS):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if slope(middle) < 0 else (low, middle)
    return float(1 / (low * high) ** 0.5)
