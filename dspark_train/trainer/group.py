"""What the controller tells a rank of the group it joins. Plain data, so that the controller need not import torch."""

from __future__ import annotations

from dataclasses import dataclass

from dspark_train.errors import PeerLost


@dataclass(frozen=True, slots=True)
class GroupSpec:
    """One generation of the trainer group, as seen by one rank.

    generation: counts the groups of a run, from 1; stands in the name of the process group, so that members of an old
    one cannot meet those of a new one. address, port: of the rendezvous that rank 0 reserved. first_unit: the
    schedule's unit to begin with. resume_step: the checkpoint to load; None to go on with what rank 0 has in memory,
    which at first is the freshly initialised draft; 0 to begin anew with that draft, whatever is in memory.
    """

    generation: int
    world_size: int
    rank: int
    address: str
    port: int
    first_unit: int
    resume_step: int | None = None


class GroupBroken(PeerLost):
    """The group broke under this rank: another one died or hangs, or the rendezvous is gone. This rank is well."""
