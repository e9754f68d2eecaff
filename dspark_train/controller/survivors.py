"""Which rank's state a broken group goes on with. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dspark_train.schedule.messages import Commit


@dataclass(frozen=True, slots=True)
class Halted:
    """What a halted rank says of itself.

    ended: whether its threads ended; step: optimizer steps in its state, None without one; uncommitted: the last unit
    that it finished, where the ledger may not have it.
    """

    ended: bool
    step: int | None = None
    uncommitted: Commit | None = None


@dataclass(frozen=True, slots=True)
class Source:
    """The rank whose state the others take over, and the unit that is to be committed for it first."""

    name: str
    uncommitted: Commit | None = None


def choose(next_unit: int, step: int, halted: Mapping[str, Halted]) -> Source | None:
    """The survivor to go on from, None where none fits and a checkpoint has to do.

    next_unit, step: the ledger's next unit, and the optimizer steps committed before it. A rank commits only what every
    rank has done, so each survivor is at the ledger's step, or has done the next unit as well. One that has is the
    better: nothing is done twice. One that is at the ledger's step does the unit in hand again.
    """
    whole = {name: one for name, one in halted.items() if one.ended and one.step is not None}
    for name, one in whole.items():
        if one.uncommitted is not None and one.uncommitted.unit == next_unit:
            return Source(name, one.uncommitted)
    return next((Source(name) for name, one in whole.items() if one.step == step), None)
