"""Who trains: the group of now, and the one that is announced to take over at a unit ahead. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from dspark_train.schedule.messages import Member


class Succession:
    """The trainer groups of a run, each with its generation."""

    def __init__(self) -> None:
        self.members: tuple[Member, ...] = ()
        self.generation = 0
        self._rank_of: dict[str, int] = {}
        self._next: tuple[int, tuple[Member, ...], int] | None = None

    def check(self, members: Sequence[Member], generation: int) -> None:
        """Raise ValueError for a group that cannot follow: without a member, or of an older generation."""
        if not members:
            raise ValueError("a trainer group needs a member")
        if generation < self.generation:
            raise ValueError(f"generation {generation} is older than {self.generation}: whoever asks was replaced")

    def enter(self, members: Sequence[Member], generation: int) -> None:
        """These train from now on; what was announced is not to come."""
        self.members, self.generation, self._next = tuple(members), generation, None
        self._rank_of = {member.name: rank for rank, member in enumerate(members)}

    def announce(self, first_unit: int, members: Sequence[Member], generation: int) -> None:
        """These take over at ``first_unit``. Raises ValueError while another group is announced."""
        if self._next is not None:
            raise ValueError(f"generation {self._next[2]} is announced already")
        self._next = (first_unit, tuple(members), generation)

    def takes_over(self, unit: int) -> bool:
        """Whether the announced group does this unit."""
        return self._next is not None and unit >= self._next[0]

    def switch(self) -> None:
        """Let the announced group enter."""
        assert self._next is not None
        self.enter(self._next[1], self._next[2])

    def rank_of(self, name: str) -> int | None:
        """The rank of a member of the group of now."""
        return self._rank_of.get(name)
