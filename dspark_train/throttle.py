"""Making engines or ranks slower on purpose while a run goes on, to see the balance answer. For rehearsals and tests.

The file `throttle.json` of the run directory says how: ``{"engine_tokens_per_s": 400, "rank_pack_s": 0.5}``. Without it
or without a key, nothing is slowed. It is looked at again once a second.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

LOOK_S = 1.0


class Throttle:
    """One member's view of the file. What it makes wait counts as work, so that rates say it."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._path, self._clock = path, clock
        self._looked_s = float("-inf")
        self._values: dict[str, Any] = {}
        self._free_s = float("-inf")

    def engine_wait_s(self, num_tokens: int) -> float:
        """How long an extraction of so many tokens has to wait, all before it counted in."""
        tokens_per_s = self._value("engine_tokens_per_s")
        if not tokens_per_s:
            return 0.0
        now_s = self._clock()
        self._free_s = max(self._free_s, now_s) + num_tokens / tokens_per_s
        return self._free_s - now_s

    def pack_wait_s(self) -> float:
        """How long each pack that a rank trains takes beyond its work."""
        return self._value("rank_pack_s")

    def _value(self, key: str) -> float:
        now_s = self._clock()
        if now_s - self._looked_s >= LOOK_S:
            self._looked_s = now_s
            self._values = _read(self._path)
        value = self._values.get(key, 0.0)
        return float(value) if isinstance(value, int | float) and value > 0 else 0.0


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
