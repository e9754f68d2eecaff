"""A sample's place in the schedule and what is known of it, and the units that are open for leasing. Pure data.

planned -> leased(engine, attempt) -> ready(key, segment) -> taken(rank) -> trained; or failed after too many attempts.
Trained slots are dropped with their unit, so only the samples of open units take memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum

from dspark_train.schedule.messages import Lease, Member, TakenSample
from dspark_train.schedule.unit import Unit, pack_rank


class State(Enum):
    """Where a sample of an open unit is."""

    PLANNED = "planned"
    LEASED = "leased"
    READY = "ready"
    TAKEN = "taken"
    FAILED = "failed"


@dataclass(slots=True, eq=False)
class Slot:
    """One sample of one unit. Its order in the schedule is (unit, index)."""

    unit: int
    index: int
    """Place within the unit."""
    pack: int
    piece: int
    sample: int
    num_tokens: int
    num_bytes: int
    rank: int = 0
    """Number of the rank that trains it, in its unit's group."""
    home: str = ""
    """The segment of that rank: where the sample belongs."""
    state: State = State.PLANNED
    key: str = ""
    """Of the object that is, or will be, in the store; "" where there is none."""
    segment: str = ""
    """Where its object is, or will be put."""
    engine: str = ""
    leased_at_s: float = 0.0
    num_leases: int = 0
    """Leases so far; part of the key, so that no two have the same."""
    num_failures: int = 0
    """Attempts that failed through the sample or its engine."""
    num_interruptions: int = 0
    """Attempts that ended because the engine did."""

    def as_lease(self, lease_s: float) -> Lease:
        """What its engine is told."""
        return Lease(self.key, self.sample, self.num_tokens, self.segment, self.unit, self.num_leases, lease_s)


@dataclass(slots=True)
class Share:
    """What one rank trains of one unit."""

    num_pending: int = 0
    """Samples neither taken nor failed."""
    ready: dict[int, Slot] = field(default_factory=dict)
    """Not yet handed out, by index."""
    given: list[TakenSample] = field(default_factory=list)
    """All that was handed out, in order: a rank that a reply did not reach is told again."""
    failed: list[tuple[int, int]] = field(default_factory=list)
    """(pack, piece) of those given up."""
    num_bytes: int = 0
    """Of all its samples together."""
    max_bytes: int = 0
    """Of its largest sample."""


class OpenUnit:
    """A unit whose samples may be leased: its slots, and each rank's share of them."""

    def __init__(self, unit: Unit, sample_bytes: Callable[[int], int]) -> None:
        self.unit = unit
        self.shares: list[Share] = []
        places = [(pack, piece) for pack, made in enumerate(unit.packs) for piece in range(len(made.pieces))]
        self.slots = [
            Slot(unit.index, index, pack, piece, found.sample, found.num_tokens, sample_bytes(found.num_tokens))
            for index, (pack, piece) in enumerate(places)
            for found in (unit.packs[pack].pieces[piece],)
        ]

    def assign(self, members: Sequence[Member]) -> None:
        """Give each pack to its rank; every share counts all its samples as pending."""
        num_ranks = len(members)
        self.shares = [Share() for _ in range(num_ranks)]
        ranks = [pack_rank(len(self.unit.packs), num_ranks, pack) for pack in range(len(self.unit.packs))]
        for slot in self.slots:
            slot.rank = ranks[slot.pack]
            slot.home = members[slot.rank].segment
            share = self.shares[slot.rank]
            share.num_bytes += slot.num_bytes
            share.max_bytes = max(share.max_bytes, slot.num_bytes)
            if slot.state is State.FAILED:
                share.failed.append((slot.pack, slot.piece))
            else:
                share.num_pending += 1

    def share_of(self, slot: Slot) -> Share:
        """The share that the slot belongs to."""
        return self.shares[slot.rank]
