"""What the balance is told at one moment. Plain data that goes through JSON unchanged: it is journalled and replayed.

Counters only grow, from the start of a member's process; a smaller one than before is a new process. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Pool = Literal["inference", "trainers"]
Mode = Literal["auto", "advise", "off"]
POOLS: tuple[Pool, ...] = ("inference", "trainers")


@dataclass(frozen=True, slots=True)
class Split:
    """Sizes of the two pools."""

    num_engines: int
    num_ranks: int

    def of(self, pool: Pool) -> int:
        """The size of one pool."""
        return self.num_engines if pool == "inference" else self.num_ranks

    def text(self) -> str:
        """In words: "2 engines + 6 ranks"."""
        engines, ranks = self.num_engines, self.num_ranks
        return f"{engines} engine{'s'[: engines != 1]} + {ranks} rank{'s'[: ranks != 1]}"


@dataclass(frozen=True, slots=True)
class EngineSeen:
    """A live engine's counters."""

    name: str
    tokens: float
    """Extracted and put into the store."""
    busy_s: float
    """Time at full speed: samples in flight, and no lease refused for want of room."""
    is_excluded: bool = False
    """Whether anything since the last observation makes its rate untypical (such as its warm-up)."""


@dataclass(frozen=True, slots=True)
class RankSeen:
    """A rank's counters, as they stood at the end of its last step."""

    name: str
    tokens: float
    """Trained."""
    busy_s: float
    """Time in steps, without waiting for samples."""
    wait_s: float = 0.0
    """Time waiting for samples."""
    fetch_s: float = 0.0
    """The part of ``wait_s`` in which every sample of the step was in the store: the link was slow, not the engines."""


@dataclass(frozen=True, slots=True)
class Costs:
    """What a move takes, as last measured; None where no such move was made yet."""

    engine_start_s: float | None = None
    rank_start_s: float | None = None
    pause_s: float | None = None


@dataclass(frozen=True, slots=True)
class Observation:
    """One look at a run.

    engines: those that take samples, by number; ranks: the trainer group, in its order. split: the wanted sizes.
    """

    at_s: float
    split: Split
    engines: tuple[EngineSeen, ...]
    ranks: tuple[RankSeen, ...]
    num_pending: int = 0
    """Members that start, drain, or are to be replaced."""
    num_silent: int = 0
    """Members that should have answered and did not."""
    is_running: bool = True
    """False in start-up, stop, and while a transaction is on its way."""
    is_excluded: bool = False
    """Whether an evaluation, a checkpoint or a resize fell into the time since the last observation."""
    remaining_s: float | None = None
    """How long the run will yet take at its present speed; None where it is not known."""
    costs: Costs = Costs()
    inference_mode: Mode = "auto"
    trainers_mode: Mode = "auto"
    pinned: tuple[Pool, ...] = ()
    """Pools that a manual `scale` has fixed."""
    refused: tuple[Split, ...] = ()
    """Splits that could not be placed, or were rolled back, lately."""

    def mode(self, pool: Pool) -> Mode:
        """The mode of one pool."""
        return self.inference_mode if pool == "inference" else self.trainers_mode


CAUTION: dict[Mode, int] = {"off": 2, "advise": 1, "auto": 0}


def more_cautious(one: Mode, other: Mode) -> Mode:
    """The mode of a pool, from that of the run and its own."""
    return max(one, other, key=CAUTION.__getitem__)
