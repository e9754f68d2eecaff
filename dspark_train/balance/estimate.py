"""One service rate with its error and its age, learnt from slices of work. Pure.

The value is the mean over the last ``memory_s`` seconds of work, older ones fading exponentially. Slices are taken for
a rate plus white noise, so the variance of a slice is inverse to its length: the variance of one second of work is
estimated as the mean of length x deviation^2, and the error of the value is its root over the remembered time.
A jump is noticed by Page's two-sided CUSUM test (E. S. Page, Continuous Inspection Schemes, Biometrika 41, 1954): the
estimate then begins again with the slices since the sum left zero.
"""

from __future__ import annotations

from math import exp, sqrt
from typing import NamedTuple

PRIOR_NOISE_FRAC = 0.1
"""Noise of a slice that is assumed before any was seen, weighing as much as PRIOR_SLICES that were."""
PRIOR_SLICES = 2.0
SLACK, LIMIT = 0.75, 6.0
"""Of the CUSUM test, in standard deviations: deviations below SLACK are drift or noise, a sum above LIMIT is a jump.
Four slices two deviations off, or one that is seven off, are one; by chance alone it takes thousands of slices."""
FEW_SLICES = 3.5
"""Fewer do not tell a jump from noise: what differs among them counts as noise."""
STALE_FRAC_PER_ROOT_HOUR = 0.2
"""How far a rate that is not seen is thought to wander: a fifth in an hour, and with the root of the time."""


class Estimate(NamedTuple):
    """A rate in tokens a second. Made by :func:`began`, renewed by :meth:`fed`; plain numbers."""

    value: float
    at_s: float
    """When the last slice came in."""
    weight_s: float
    """Remembered seconds of work."""
    num: float
    """Remembered slices."""
    spread: float
    """Sum over the remembered slices of length x deviation^2."""
    slice_s: float
    """Length of the last slice."""
    high: float = 0.0
    high_tokens: float = 0.0
    high_s: float = 0.0
    low: float = 0.0
    low_tokens: float = 0.0
    low_s: float = 0.0

    def second_variance(self) -> float:
        """Variance of the work of one second."""
        prior = (PRIOR_NOISE_FRAC * self.value) ** 2 * self.slice_s
        return (self.spread + PRIOR_SLICES * prior) / (self.num + PRIOR_SLICES)

    def variance(self, now_s: float) -> float:
        """Square of the error now: of the mean, and of how far the rate may have gone since it was seen."""
        stale = STALE_FRAC_PER_ROOT_HOUR * self.value
        return self.second_variance() / self.weight_s + stale * stale * max(0.0, now_s - self.at_s) / 3600

    def error(self, now_s: float) -> float:
        """Standard error now."""
        return sqrt(self.variance(now_s))

    def age_s(self, now_s: float) -> float:
        """Time since it was last seen."""
        return now_s - self.at_s

    def fed(self, tokens: float, busy_s: float, at_s: float, memory_s: float) -> Estimate:
        """With one more slice: so many tokens in ``busy_s`` seconds of unblocked work."""
        # A simulated day of a thousand engines comes here three million times, so fields are read once.
        old, _, weight_s, num, spread, _, high, high_tokens, high_s, low, low_tokens, low_s = self
        rate = tokens / busy_s
        deviation = rate - old
        score = 0.0
        if num >= FEW_SLICES:
            variance = self.second_variance()
            score = deviation / sqrt(variance / busy_s) if variance > 0 else 0.0
            high += score - SLACK
            low -= score + SLACK
        if num >= FEW_SLICES and high > 0:
            high_tokens, high_s = high_tokens + tokens, high_s + busy_s
            if high > LIMIT:
                return self._began_again(high_tokens, high_s, at_s)
        else:
            high = high_tokens = high_s = 0.0
        if num >= FEW_SLICES and low > 0:
            low_tokens, low_s = low_tokens + tokens, low_s + busy_s
            if low > LIMIT:
                return self._began_again(low_tokens, low_s, at_s)
        else:
            low = low_tokens = low_s = 0.0
        kept = exp(-busy_s / memory_s)
        weight_s = weight_s * kept + busy_s
        value = old + deviation * busy_s / weight_s
        spread = spread * kept + busy_s * deviation * (rate - value)
        num = num * kept + 1
        return Estimate(value, at_s, weight_s, num, spread, busy_s, high, high_tokens, high_s, low, low_tokens, low_s)

    def _began_again(self, tokens: float, busy_s: float, at_s: float) -> Estimate:
        """From the slices since a jump. The noise is thought to be no less, and the jump counts as one slice of it.

        So noise that was taken for a jump makes the next one less likely, instead of a rate that looks sure.
        """
        value = tokens / busy_s
        ratio = value / self.value if self.value > 0 else 1.0
        deviation = (value - self.value) * min(1.0, ratio)
        spread = self.spread * max(1.0, ratio * ratio) + self.slice_s * deviation * deviation
        return Estimate(value, at_s, busy_s, self.num + 1, spread, self.slice_s)


def began(tokens: float, busy_s: float, at_s: float) -> Estimate:
    """From a first slice."""
    return Estimate(tokens / busy_s, at_s, busy_s, 1.0, 0.0, busy_s)


def learnt(known: Estimate | None, tokens: float, busy_s: float, at_s: float, memory_s: float) -> Estimate:
    """``known``, or nothing yet, with one more slice."""
    return began(tokens, busy_s, at_s) if known is None else known.fed(tokens, busy_s, at_s, memory_s)
