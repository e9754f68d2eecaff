"""The words of the schedule: pieces, packs, units. Pure data.

A *unit* is what the trainer group does at once: a training step, or one validation round. Units are numbered from 0 in
the order they are done; steps are numbered from 1 (`step` of a validation unit is the step it follows, 0 before all).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Piece:
    """A sample's place in a pack: rows ``start_row .. start_row + num_tokens`` hold its first ``num_tokens`` tokens."""

    sample: int
    """Row of the data set."""
    start_row: int
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Pack:
    """One row of ``seq_len`` tokens."""

    index: int
    """Place in the epoch's order of packs (or of the validation packs)."""
    epoch: int
    pieces: tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class Unit:
    """One training step or validation round: its packs, in order."""

    index: int
    kind: Literal["train", "validate"]
    step: int
    epoch: int
    packs: tuple[Pack, ...]


def rank_packs(num_packs: int, num_ranks: int, rank: int) -> range:
    """The packs of a unit that ``rank`` trains: a contiguous share, sizes differing by at most one.

    A rank gets none where there are more ranks than packs.
    """
    return range(num_packs * rank // num_ranks, num_packs * (rank + 1) // num_ranks)


def pack_rank(num_packs: int, num_ranks: int, pack: int) -> int:
    """The rank that trains ``pack``: the inverse of :func:`rank_packs`."""
    return ((pack + 1) * num_ranks - 1) // num_packs
