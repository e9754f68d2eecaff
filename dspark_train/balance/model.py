"""Throughput of a split from the rates of its members, and the best of all legal splits. Pure.

X(n, k) = min(sum of n engines' rates, T(k), link),
T(k) = step_packs x rank rate / (ceil(step_packs / k) + fixed_packs):
a step lasts as long as the rank with most packs takes, so T is a staircase; ``fixed_packs`` is the time of a step that
no rank more makes shorter, in packs. It is the bottleneck law of a closed line of stations (Denning and Buzen, The
Operational Analysis of Queueing Network Models, 1978) with the trainer group as one station.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import inf

from dspark_train.balance.layout import Layout
from dspark_train.balance.seen import Split
from dspark_train.balance.signals import Bottleneck

CLOSE_FRAC = 1e-9
"""Throughputs that differ by less are equal: they are sums in another order."""


@dataclass(frozen=True, slots=True)
class Rates:
    """Rates in tokens a second. engines: those that are there, in the order in which they would be kept."""

    engines: tuple[float, ...]
    rank: float
    step_packs: int
    link: float = inf
    fixed_packs: float = 0.0


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a split would give."""

    split: Split
    tokens_per_s: float
    bottleneck: Bottleneck | None
    """None where the pools match to a percent."""


@dataclass(frozen=True, slots=True)
class Best:
    """The best split, and the best that differs from it."""

    first: Prediction
    second: Prediction | None
    """None where only one split is legal. It may be just as good."""

    @property
    def lead_frac(self) -> float:
        """By how much the second is worse; 0 where there is none."""
        if self.second is None or self.first.tokens_per_s <= 0:
            return 0.0
        return 1 - self.second.tokens_per_s / self.first.tokens_per_s


class Model:
    """Predictions from one set of rates. An engine that is not there yet is taken to be as fast as the mean one."""

    def __init__(self, rates: Rates) -> None:
        self.rates = rates
        self._sums = [0.0, *accumulate(rates.engines)]
        self._mean = self._sums[-1] / len(rates.engines) if rates.engines else 0.0

    def engines(self, num: int) -> float:
        """Tokens a second that so many engines extract."""
        last = len(self._sums) - 1
        return self._sums[num] if num <= last else self._sums[last] + (num - last) * self._mean

    def trainers(self, num_ranks: int) -> float:
        """Tokens a second that so many ranks train."""
        packs = self.rates.step_packs
        return packs * self.rates.rank / (-(-packs // num_ranks) + self.rates.fixed_packs) if num_ranks else 0.0

    def throughput(self, split: Split, ratio: float = 1.0) -> float:
        """Tokens a second of the whole line, in units of the engines' where ranks are faster by ``ratio``."""
        return min(self.engines(split.num_engines), self.trainers(split.num_ranks) * ratio, self.rates.link)

    def gain(self, now: Split, to: Split, ratio: float = 1.0) -> float:
        """By what share ``to`` is faster than ``now``, were ranks faster by ``ratio`` beside the engines."""
        at_now = self.throughput(now, ratio)
        return self.throughput(to, ratio) / at_now - 1 if at_now > 0 else inf

    def predict(self, split: Split) -> Prediction:
        """Throughput, and what holds it up."""
        parts: list[tuple[float, Bottleneck]] = [
            (self.engines(split.num_engines), "inference"),
            (self.trainers(split.num_ranks), "trainers"),
            (self.rates.link, "link"),
        ]
        parts.sort()
        (least, name), (next_least, _) = parts[0], parts[1]
        return Prediction(split, least, name if next_least > 1.01 * least else None)

    def engines_needed(self, tokens_per_s: float) -> int:
        """The fewest engines that extract so much."""
        wanted = tokens_per_s * (1 - CLOSE_FRAC)
        num = bisect_left(self._sums, wanted)
        if num < len(self._sums):
            return num
        if self._mean <= 0:
            return len(self._sums)
        num = len(self._sums) - 1 + int((wanted - self._sums[-1]) / self._mean)
        while self.engines(num) < wanted:
            num += 1
        return num

    def candidates(self, layout: Layout, now: Split, ratio: float = 1.0) -> Iterator[Split]:
        """For each number of ranks that makes steps shorter, the split with the best throughput.

        Where several numbers of engines give it, it is the one nearest to what runs now: a move has its cost. Ranks
        that make no step shorter, and no room for engines, are passed over, unless they are there.
        """
        last_share, last_most, link, least = 0, -1, self.rates.link, layout.min_engines
        for num_ranks, most in enumerate(layout.most_engines, layout.min_ranks):
            share = -(-layout.step_packs // num_ranks)
            is_idle = share == last_share and most <= last_most and num_ranks != now.num_ranks
            if most < least or is_idle:
                continue
            last_share, last_most = share, most
            needed = self.engines_needed(min(self.trainers(num_ranks) * ratio, link))
            yield Split(max(min(needed, most), least, min(now.num_engines, most)), num_ranks)

    def best(self, layout: Layout, now: Split) -> Best | None:
        """The best legal split and the runner-up; None where none is legal. Of equals, the one nearest to ``now``."""
        found = list(self.candidates(layout, now))
        if not found:
            return None
        ranked = self._ranked(found, now)
        first = ranked[0]
        others = {*ranked[1:], *neighbours(first)} - {first}
        second = self._ranked([split for split in others if layout.is_legal(split)], now)
        return Best(self.predict(first), self.predict(second[0]) if second else None)

    def _ranked(self, splits: Iterable[Split], now: Split) -> list[Split]:
        return sorted(splits, key=lambda split: (-_rounded(self.throughput(split)), distance(split, now)))


def neighbours(split: Split) -> Sequence[Split]:
    """One member more or less in either pool, or a member of one for a member of the other."""
    steps = ((-1, 0), (1, 0), (0, -1), (0, 1), (1, -1), (-1, 1))
    return [Split(split.num_engines + n, split.num_ranks + k) for n, k in steps]


def distance(one: Split, other: Split) -> int:
    """How many members come or go between two splits."""
    return abs(one.num_engines - other.num_engines) + abs(one.num_ranks - other.num_ranks)


def _rounded(tokens_per_s: float) -> float:
    """To nine digits, so that sums in another order are equal."""
    return float(f"{tokens_per_s:.9g}")
