"""Which life of an engine counts. Pure.

An engine whose host is cut off cannot be ended, and may come back while another has taken its name. Each is told a
number when it is let lease, larger than those before it: the newest alone is heard, until it is ended.
"""

from __future__ import annotations

import math

from dspark_train.errors import Replaced


class Lives:
    """The newest life of each engine, by name."""

    def __init__(self) -> None:
        self._newest: dict[str, float] = {}
        self._ended: dict[str, float] = {}

    def enter(self, engine: str, life: float) -> bool:
        """Whether this is another life than was last heard of. Raises Replaced where it does not count."""
        newest = self._newest.get(engine, -math.inf)
        if life < newest or life <= self._ended.get(engine, -math.inf):
            raise Replaced(f"{engine} was given up: another takes its place, and nothing more is heard from this one")
        self._newest[engine] = life
        return newest != -math.inf and life > newest

    def end(self, engine: str) -> None:
        """The life that was last heard of is over."""
        if engine in self._newest:
            self._ended[engine] = self._newest[engine]
