"""How many requests an engine is given at a time: as many as its scheduler takes, and as many again behind them. Pure.

The scheduler runs a batch and takes the next one from what waits. With nothing waiting it idles between two batches;
what waits beyond one batch only makes samples old, and is lost with the engine. Its own metrics say how many wait, and
how many it took: extraction requests end within one iteration, so its gauge of running ones, set after each, reads 0
however busy it is, and the batch is told by what ended in how many iterations. The limits of the topology are kept
whatever the metrics say.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

FORGET = 0.9
"""What is left of the largest batch at each look, so that the depth follows when batches become smaller."""
_METRIC = re.compile(
    r"^vllm:(num_requests_waiting|request_success_total|iteration_tokens_total_count)(?:\{[^}]*\})? +([0-9.eE+-]+) *$",
    re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class DepthRule:
    """num_max: the topology's limit; num_spare: what may wait beyond one batch."""

    num_max: int
    num_min: int = 2
    num_spare: int = 2


@dataclass(frozen=True, slots=True)
class Depth:
    """The requests that may be at the engine. peak: the largest batch it ran lately."""

    num: int
    peak: float = 0.0


@dataclass(frozen=True, slots=True)
class Gauges:
    """What an engine's /metrics say: requests that wait now; requests ended, and iterations, since its start."""

    num_waiting: int
    num_ended: int
    num_iterations: int


@dataclass(frozen=True, slots=True)
class Scheduled:
    """What a scheduler did between two looks. batch: requests of one iteration.

    num_given: requests that the engine has not answered, as the feeder counts them.
    """

    batch: float
    num_waiting: int
    num_given: int


def decide_depth(rule: DepthRule, depth: Depth, seen: Scheduled) -> tuple[Depth, str]:
    """The depth from now on, and why. Never more than ``num_max``, nor less than ``num_min`` where that is allowed."""
    peak = max(seen.batch, FORGET * depth.peak)
    wanted = 2 * math.ceil(peak) + rule.num_spare
    if seen.num_waiting == 0:
        if seen.num_given < depth.num:
            return Depth(depth.num, peak), "nothing waits, and less is given than may be: the ledger has no more"
        num, reason = depth.num + max(1, depth.num // 4), "nothing waits: it takes more"
    elif seen.num_waiting > peak + rule.num_spare and wanted < depth.num:
        num, reason = wanted, f"{seen.num_waiting} wait behind a batch of {math.ceil(peak)}"
    else:
        return Depth(depth.num, peak), "a batch waits behind the one that runs"
    return Depth(min(max(num, rule.num_min), rule.num_max), peak), reason


def between(before: Gauges, now: Gauges, num_given: int) -> Scheduled | None:
    """What happened between two looks; None where no iteration ended, or the engine began anew."""
    num_iterations, num_ended = now.num_iterations - before.num_iterations, now.num_ended - before.num_ended
    if num_iterations <= 0 or num_ended < 0:
        return None
    return Scheduled(num_ended / num_iterations, now.num_waiting, num_given)


def parse_gauges(text: str) -> Gauges | None:
    """Read vLLM's /metrics, over all its engine cores and reasons to end; None where it does not say all of it."""
    found: dict[str, float] = {}
    for name, value in _METRIC.findall(text):
        found[name] = found.get(name, 0.0) + float(value)
    if len(found) < 3:
        return None
    names = ("num_requests_waiting", "request_success_total", "iteration_tokens_total_count")
    return Gauges(*(round(found[name]) for name in names))
