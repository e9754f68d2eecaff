"""What travels between feeders, ranks, controller and the ledger. Small, picklable, no tensors. Pure data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

LedgerState = Literal["idle", "running", "stopping", "stopped", "done", "failed"]
"""idle: no leases yet; stopping: a boundary is fixed; stopped: it is reached; failed: see ``reason``."""


@dataclass(frozen=True, slots=True)
class Member:
    """A rank as the ledger sees it: who trains, and where its samples are put."""

    name: str
    segment: str
    """The store segment that the rank owns (its client's host name)."""
    capacity_bytes: int


@dataclass(frozen=True, slots=True)
class Lease:
    """A sample to extract. The key is new with every attempt, so a late answer to an old attempt is told apart."""

    key: str
    sample: int
    num_tokens: int
    segment: str
    unit: int
    attempt: int
    lease_s: float


@dataclass(frozen=True, slots=True)
class Ready:
    """A leased sample is in the store."""

    key: str
    num_bytes: int


@dataclass(frozen=True, slots=True)
class Lost:
    """A leased or ready sample is not to be had; it goes back to planned.

    is_wrong: it was read, and is not what the engine should have put. is_unreachable: it was made, and the segment that
    it was for takes nothing: that burns no attempt.
    """

    key: str
    reason: str
    is_wrong: bool = False
    is_unreachable: bool = False


@dataclass(frozen=True, slots=True)
class TakenSample:
    """A ready sample handed to the rank that trains it. pack: index within the unit; piece: index within the pack."""

    pack: int
    piece: int
    key: str
    num_bytes: int


@dataclass(frozen=True, slots=True)
class TakeReply:
    """Answer to ``take(rank, unit)``.

    kind "samples": fetch ``samples`` (only those not handed out before, or handed out and lost since); ``failed`` are
    (pack, piece) given up, to be masked; ``complete`` says that nothing more will come for this unit.
    kind "stop": do not do this unit: write a checkpoint and end (``now``: without the checkpoint).
    kind "done": the schedule is at its end. kind "regroup": a new generation begins with this unit.
    """

    kind: Literal["samples", "stop", "done", "regroup"]
    samples: tuple[TakenSample, ...] = ()
    failed: tuple[tuple[int, int], ...] = ()
    complete: bool = False
    now: bool = False


@dataclass(frozen=True, slots=True)
class Commit:
    """A finished unit, reported by rank 0 after the group's optimizer step (or validation round).

    metrics: what goes into metrics.jsonl or validation.jsonl, numbers and short strings only.
    """

    unit: int
    generation: int
    metrics: dict[str, float | int | str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LedgerView:
    """What the controller shows of the ledger. Counts are of samples; a sample is counted anew each time it is used."""

    planned: int
    leased: int
    ready: int
    taken: int
    trained: int
    failed: int
    regenerated: int
    unit: int
    """Next unit to commit."""
    step: int
    total_steps: int
    epoch: int
    resident_bytes: int
    """Leased (expected), ready and taken bytes in the store."""
    state: LedgerState
    reason: str = ""
    last_metrics: dict[str, float | int | str] = field(default_factory=dict)
    last_validation: dict[str, float | int | str] = field(default_factory=dict)
    generation: int = 0
    members: tuple[str, ...] = ()
    """The trainer group of now."""
    is_handed_out: bool = False
    """Whether ranks have, or are told that they will not get, every sample of the next unit."""
    key_prefix: str = ""
    """Of this life of the ledger."""
    leased_by: dict[str, int] = field(default_factory=dict)
    """Engine -> samples leased to it."""
    done_tokens_by: dict[str, int] = field(default_factory=dict)
    """Engine -> tokens extracted since the ledger started."""
    wrong_by: dict[str, int] = field(default_factory=dict)
    """Engine -> its samples found wrong by ranks since one of its was trained."""
    checkpoint_step: int = 0
    """Step of the last checkpoint that the ranks told of."""
