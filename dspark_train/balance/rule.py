"""The thresholds of the balance. Pure data; the defaults stand in the topology's schema alone."""

from __future__ import annotations

from dataclasses import dataclass

from dspark_train.balance.layout import Layout
from dspark_train.balance.seen import Mode
from dspark_train.topology.resolve import Resolved
from dspark_train.topology.schema import Balance


@dataclass(frozen=True, slots=True)
class Rule:
    """See `topology.schema.Balance`, whose keys these are."""

    window_s: float
    num_windows: int
    min_gain_frac: float
    confidence_z: float
    cost_factor: float
    cooldown_s: float
    warm_up_s: float
    memory_s: float
    release_frac: float | None
    release_windows: int
    engine_start_s: float
    rank_start_s: float
    pause_s: float
    waiting_frac: float = 0.1
    """From this share of their time on, ranks that wait for what is in the store say what the link carries."""

    @classmethod
    def of(cls, balance: Balance) -> Rule:
        """The topology's."""
        return cls(**balance.model_dump(exclude={"mode", "inference", "trainers"}))


@dataclass(frozen=True, slots=True)
class Settings:
    """All that a decision depends on beside what is seen: constant through a run."""

    rule: Rule
    layout: Layout

    @classmethod
    def of(cls, resolved: Resolved) -> Settings:
        """The topology's."""
        return cls(Rule.of(resolved.topology.balance), Layout.of(resolved))


def pool_modes(balance: Balance) -> tuple[Mode, Mode, Mode]:
    """The topology's modes: of the run, the engines, the ranks."""
    return balance.mode, balance.inference, balance.trainers
