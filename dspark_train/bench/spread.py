"""Figures of repeated measurements: the median is what is reported, the spread says how far to trust it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True, slots=True)
class Spread:
    """Of one figure measured several times."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """values: one or more."""
        return cls(float(median(values)), float(min(values)), float(max(values)))


def ratios(ours: Sequence[float], others: Sequence[float]) -> Spread:
    """Ours over the other's, pair by pair: what slowed both sides of a pair cancels out."""
    return Spread.of([own / other for own, other in zip(ours, others, strict=True)])
