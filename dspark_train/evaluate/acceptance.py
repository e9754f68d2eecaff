"""What was accepted of what was drafted, counted as vLLM counts it, and averaged over domains. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any


@dataclass(frozen=True)
class Acceptance:
    """Counts of a number of drafts, each of which was verified once.

    per_position_counts: of each draft position, in how many drafts it was accepted (so every earlier one was as well).
    num_tokens: generated in all, tokens after an end of text not counted. num_prompts: that they were generated for.
    """

    num_drafts: int = 0
    per_position_counts: tuple[int, ...] = ()
    num_tokens: int = 0
    num_prompts: int = 0

    @property
    def num_accepted(self) -> int:
        return sum(self.per_position_counts)

    @property
    def accept_len(self) -> float | None:
        """Mean tokens of one verification, the target's own included: between 1 and 1 + the draft's length.

        None where nothing was drafted.
        """
        return 1 + self.num_accepted / self.num_drafts if self.num_drafts else None

    @property
    def per_position(self) -> tuple[float, ...]:
        """Part of all drafts in which a position was accepted; never rises from one position to the next."""
        return tuple(count / self.num_drafts for count in self.per_position_counts) if self.num_drafts else ()

    @property
    def conditional(self) -> tuple[float | None, ...]:
        """Part accepted at a position of those that got there; None where none did."""
        before = (self.num_drafts, *self.per_position_counts)
        return tuple(now / was if was else None for now, was in zip(self.per_position_counts, before, strict=False))

    def __add__(self, other: Acceptance) -> Acceptance:
        pairs = zip_longest(self.per_position_counts, other.per_position_counts, fillvalue=0)
        return Acceptance(
            self.num_drafts + other.num_drafts,
            tuple(a + b for a, b in pairs),
            self.num_tokens + other.num_tokens,
            self.num_prompts + other.num_prompts,
        )

    def as_json(self) -> dict[str, Any]:
        return {
            "accept_len": self.accept_len,
            "per_position": list(self.per_position),
            "conditional": list(self.conditional),
            "num_tokens": self.num_tokens,
            "num_prompts": self.num_prompts,
            "num_drafts": self.num_drafts,
        }


def of_rounds(accepted: Iterable[int], num_positions: int, num_tokens: int) -> Acceptance:
    """The counts of one prompt: ``accepted`` is how many draft tokens each verification took."""
    counts = list(accepted)
    per_position = tuple(sum(n > position for n in counts) for position in range(num_positions))
    return Acceptance(len(counts), per_position, num_tokens, 1)


def total(parts: Iterable[Acceptance]) -> Acceptance:
    return sum(parts, Acceptance())


def macro_accept_len(domains: Mapping[str, Acceptance]) -> float | None:
    """The mean of the domains' acceptance lengths, each domain weighing the same; None where none has one."""
    known = [length for part in domains.values() if (length := part.accept_len) is not None]
    return sum(known) / len(known) if known else None


def bucket_of(num_tokens: int, edges: Iterable[int]) -> str:
    """The bucket of a length: "<=512" for the smallest edge that is not below it, ">4096" above all."""
    ordered = sorted(edges)
    fitting = [edge for edge in ordered if num_tokens <= edge]
    return f"<={fitting[0]}" if fitting else f">{ordered[-1]}"
