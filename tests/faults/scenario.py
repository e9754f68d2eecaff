"""What is done to a run, as data: which fault, to whom, when; and what must be true of the run afterwards.

Nothing is done here: `runner.py` does it, `invariants.py` judges it, the same way for every scenario.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

What = Literal["kill", "stop", "scale", "lie", "fill_disk", "free_disk"]
REPAIRS = {
    "engine": "engine.feeding",
    "rank": "group.formed",
    "ledger": "ledger.replaced",
    "controller": "controller.adopted",
    "master": "store.replaced",
}
"""Kind of member -> the event with which the journal says that it works again."""


@dataclass(frozen=True)
class Fault:
    """One fault. It comes once ``at_step`` is committed and, unless it ``overlaps``, the one before is dealt with."""

    what: What
    whom: str = ""
    """A process as `processes.find` knows it: "engine-1 api", "rank-0", "ledger", "master process", ..."""
    at_step: int = 1
    overlaps: bool = False
    for_s: float | None = None
    """A stopped process is continued after so long; None: never."""
    orders: tuple[str, ...] = ()
    """Options of `scale`."""
    ends: str = "done"
    """How the transaction of a scale must end."""
    mode: str = ""
    """Of a lie, with ``count`` requests that are answered with it."""
    count: int = 1
    is_found: bool = False
    """A lie is dealt with only once the samples that it spoilt are made anew: no two are then in a row."""
    repair: str | None = None
    """The event that says it is repaired, "" where nothing has to be; None: the one of `REPAIRS`."""
    status_code: int = 0
    """What `status` must end with once this is dealt with. 4: the run stays degraded."""

    @property
    def repaired_by(self) -> str:
        """The event to wait for, "" where there is none."""
        if self.repair is not None:
            return self.repair
        if self.what in ("kill", "stop"):
            return REPAIRS[self.whom.partition(" ")[0].partition("-")[0]]
        return ""

    def text(self) -> str:
        """In words, for the table."""
        if self.what == "scale":
            return " ".join(self.orders)
        if self.what == "lie":
            return f"{self.mode} x {self.count}"
        return "stop, then continue" if self.what == "stop" and self.for_s is not None else self.what


@dataclass(frozen=True)
class Scenario:
    """A run and its faults, in order."""

    name: str
    faults: tuple[Fault, ...]
    overrides: tuple[str, ...] = ()
    """As in `--set`."""
    step_s: float = 0
    """A step takes at least so long, so that the faults have time to come. On a quiet machine: see `slowness`."""
    recovered_within_s: float = 20
    """The longest that training may stand still for any of the faults, beyond a usual step. On a quiet machine."""
    num_steps: int = 64
    events: tuple[str, ...] = ()
    """Kinds of events that the journal must have."""
    disk_mib: int | None = None
    """The checkpoints are on a disk of their own of this size."""
    base: tuple[str, ...] = ()
    """Overrides that the run it is compared with has, too."""
    same_loss: float = 1e-6
    """How far, relatively, losses may be from that run's: fp32, and hidden states that are the same bytes in both."""


FEW_STEPS = 48
"""Enough for faults that are ordered before step 24; what is left of a longer run would only be waited for."""
QUIET_START_S = 25.0
"""From the launch to the first step of a run that is left alone, on two cores that nobody else uses."""
MAX_SLOWNESS = 2.5


def slowness(start_s: float) -> float:
    """How many times slower than a quiet one a machine is, whose run left alone took so long to start.

    Such a machine gets more time between faults and for each recovery: it should be slow, not red.
    """
    return min(MAX_SLOWNESS, max(1.0, start_s / QUIET_START_S))
