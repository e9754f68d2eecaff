"""Looks at the engine's scheduler once a second, and lets the feeder keep it just full enough. Decides nothing."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from dspark_train.engine.depth import Depth, DepthRule, Gauges, Scheduled, between, decide_depth, parse_gauges
from dspark_train.engine.extract import EngineRefused
from dspark_train.engine.in_flight import InFlight
from dspark_train.engine.load import Load, parse_load
from dspark_train.engine.requests import Requests

LOOK_S = 1.0
METRICS_TIMEOUT_S = 5.0
logger = logging.getLogger(__name__)


class DepthWatch:
    """:meth:`run` adapts the depth of ``flights`` until it is cancelled; without metrics it stays as it is."""

    def __init__(self, engine: str, requests: Requests, flights: InFlight, changed: Callable[[], None]) -> None:
        """changed: called when there may be more room than before."""
        self._engine, self._requests, self._flights, self._changed = engine, requests, flights, changed
        self._rule = DepthRule(flights.depth)
        self._depth = Depth(flights.depth)
        self.load: Load | None = None
        """The engine's load at the last look, None where it did not say."""

    async def run(self) -> None:
        """Look and decide, again and again."""
        before: Gauges | None = None
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                text = await self._requests.metrics(METRICS_TIMEOUT_S)
            except (TimeoutError, EngineRefused):
                self.load = None
                continue  # whether the engine is of any use is seen by its samples
            now, self.load = parse_gauges(text), parse_load(text)
            if now is None:
                logger.info("%s: its /metrics tell nothing of its scheduler; the depth stays", self._engine)
                return
            seen = between(before, now, self._flights.num_given) if before is not None else None
            if seen is not None:
                self._decide(seen)
            if seen is not None or before is None:
                before = now

    def _decide(self, seen: Scheduled) -> None:
        old = self._depth
        self._depth, reason = decide_depth(self._rule, old, seen)
        if self._depth.num != old.num:
            logger.info("%s: depth %d -> %d: %s", self._engine, old.num, self._depth.num, reason)
            self._flights.depth = self._depth.num
            self._changed()
