"""Why the balance moves or holds: a closed list. Pure data; docs/balance.md has a line for each."""

from __future__ import annotations

from enum import StrEnum


class Reason(StrEnum):
    """The reason of one decision. `gain` and `release` are moves, all others are holds."""

    GAIN = "gain"
    RELEASE = "release"

    OFF = "off"
    PINNED = "pinned"
    FIXED = "fixed by bounds"
    BETWEEN_WINDOWS = "between windows"
    NOT_RUNNING = "not running"
    PENDING = "pending"
    SILENT = "silent"
    RATES_UNKNOWN = "rates unknown"
    COOLING_DOWN = "cooling down"
    ILLEGAL = "not placeable"
    BEST = "best split"
    UNCERTAIN = "uncertain gain"
    COST = "costs more than it wins"
    UNCHANGED = "rates unchanged since the last move"
    FEW_WINDOWS = "seen in too few windows"

    @property
    def is_move(self) -> bool:
        """Whether a pool's size is to change."""
        return self in (Reason.GAIN, Reason.RELEASE)
