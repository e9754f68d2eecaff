"""A scenario file as types: what members can do, what happens to them when. Pure; reading one is `read.py`.

Rates are in samples a second, so that they can be taken from published figures.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from dspark_train.topology.schema import Strict


class Sizes(Strict):
    """The pools at the start, instead of the topology's."""

    engines: int = Field(ge=1, le=10_000, description="Engines at the start.")
    ranks: int = Field(ge=1, le=10_000, description="Ranks at the start.")


class EngineKind(Strict):
    """What an engine can do."""

    samples_per_s: float = Field(gt=0, description="Of one engine that is not blocked.")
    start_s: float = Field(default=240, ge=0, description="From its start to its first sample.")


class RankKind(Strict):
    """What a rank can do."""

    samples_per_s: float = Field(gt=0, description="Of one rank that has packs to train.")
    start_s: float = Field(default=240, ge=0, description="From its start until it may join.")
    pause_s: float = Field(default=40, ge=0, description="How long training stands still when ranks come or go.")


class Change(Strict):
    """The rates are multiplied by these factors from a moment on; the last change before a moment holds."""

    at_h: float = Field(ge=0, description="When, in hours from the start.")
    over_h: float = Field(default=0, ge=0, description="How long the change takes; 0: at once.")
    engines: float = Field(default=1, gt=0, description="Factor of every engine's rate.")
    ranks: float = Field(default=1, gt=0, description="Factor of every rank's rate.")
    link: float = Field(default=1, gt=0, description="Factor of what the link carries.")


class Failure(Strict):
    """A member dies, and is started again at once."""

    at_h: float = Field(ge=0, description="When, in hours from the start.")
    pool: Literal["inference", "trainers"] = Field(description="Of which pool.")
    number: int = Field(default=1, ge=1, description="Which engine; ranks are all alike.")


class Scenario(Strict):
    """A whole scenario file."""

    name: str = Field(min_length=1, description="Shown above the results.")
    text: str = Field(default="", description="What it shows, in a sentence.")
    set: tuple[str, ...] = Field(default=(), description="Values of the topology to replace, as --set does: a.b=c.")
    hours: float = Field(default=4, gt=0, le=240, description="Length of the run.")
    tick_s: float = Field(default=10, gt=0, le=600, description="Step of the virtual clock.")
    seeds: tuple[int, ...] = Field(default=(0,), min_length=1, max_length=1000, description="One run for each.")
    flow: Literal["fluid", "ledger"] = Field(
        default="fluid",
        description="fluid: samples flow as rates, for any size; ledger: each sample goes through the real ledger.",
    )
    start: Sizes | None = Field(default=None, description="Sizes at the start; off: the topology's.")
    engine: EngineKind
    rank: RankKind
    slow: dict[int, float] = Field(default_factory=dict, description="Engine number: factor of its rate.")
    link_samples_per_s: float | None = Field(default=None, gt=0, description="What the link carries; off: everything.")
    buffer_samples: float = Field(default=1200, gt=0, description="Samples that the store holds.")
    noise_frac: float = Field(
        default=0, ge=0, le=2, description="Standard deviation of a member's rate from tick to tick."
    )
    changes: tuple[Change, ...] = Field(default=(), description="Changes of the rates, in order of time.")
    failures: tuple[Failure, ...] = Field(default=(), description="Deaths of members.")
    hours_between_failures: float | None = Field(
        default=None, gt=0, description="Mean time between two deaths of one member, beside those listed; off: none."
    )

    @property
    def num_ticks(self) -> int:
        """Ticks of the whole run."""
        return max(1, round(self.hours * 3600 / self.tick_s))
