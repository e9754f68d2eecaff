"""What the controller must know to go on after its own death: `roster.json` in the run directory, written atomically.

Names and numbers only; whether a member lives is asked of the cluster, and who trains of the ledger.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import Literal

from pydantic import BaseModel, Field, PrivateAttr

from dspark_train.cluster.protocol import NodeInfo
from dspark_train.plan.growth import Kind, member_names
from dspark_train.schedule.messages import Member

Pool = Literal["inference", "trainers"]
POOLS: dict[Kind, Pool] = {"engine": "inference", "rank": "trainers"}


class Transaction(BaseModel):
    """One change of the pools' sizes. ``num_from``, ``num_to``: members by pool, for the pools that change."""

    id: str
    num_from: dict[Pool, int]
    num_to: dict[Pool, int]
    state: Literal["running", "done", "rolled back"] = "running"
    phase: str = ""
    reason: str = ""
    drains: dict[str, str] = Field(default_factory=dict)
    """Nodes that it leaves: id -> address."""
    retires: list[str] = Field(default_factory=list)
    """Members on them that do not come back: others, with names of their own, take their places."""
    moves: list[str] = Field(default_factory=list)
    """Engines on them that end first, and are made anew on other nodes, as their place needs what they hold."""
    started_at: str = ""
    ended_at: str = ""
    pause_s: float | None = None
    """How long training stood still for it; 0 where no rank came or went, None while unknown."""

    def text(self) -> str:
        """The change in words: "inference 1 -> 2, trainers 2 -> 1, away from 10.0.0.4"."""
        parts = [f"{pool} {self.num_from[pool]} -> {num}" for pool, num in self.num_to.items()]
        return ", ".join(parts + [f"away from {address}" for address in self.drains.values()])


class NodeRecord(BaseModel):
    """The real node that a planned node became."""

    id: str
    address: str
    num_gpus: float = 0.0
    labels: dict[str, str] = Field(default_factory=dict)


class MemberRecord(BaseModel):
    """A rank of the trainer group, with its segment."""

    name: str
    segment: str
    capacity_bytes: int


class PendingGroup(BaseModel):
    """A trainer group that is to take over at a boundary."""

    generation: int
    group: list[MemberRecord]


class Roster(BaseModel):
    """The run's members as they are meant to be."""

    _writing: Lock = PrivateAttr(default_factory=Lock)

    num_desired: dict[Pool, int]
    pinned: dict[Pool, bool] = Field(default_factory=dict)
    """Pools that a manual `scale` has fixed."""
    generation: int = 0
    group: list[MemberRecord] = Field(default_factory=list)
    pending: PendingGroup | None = None
    """The group that is announced to take over."""
    ports: dict[str, int] = Field(default_factory=dict)
    nodes: dict[str, NodeRecord] = Field(default_factory=dict)
    drained: dict[str, str] = Field(default_factory=dict)
    """Nodes on which nothing is started any more: id -> address."""
    retired: list[str] = Field(default_factory=list)
    """Members whose node was drained: their names do not come back."""
    num_transactions: int = 0
    transaction: Transaction | None = None
    """The last one, ended or not."""
    is_up: bool = False
    """Whether the start-up is over, so that there is something to go on with."""

    @property
    def members(self) -> list[Member]:
        """The trainer group, in the order of its ranks."""
        return [Member(one.name, one.segment, one.capacity_bytes) for one in self.group]

    def names(self, kind: Kind, num: int | None = None) -> list[str]:
        """Who the wanted members of a pool are, or would be if there were ``num``."""
        num_wanted = self.num_desired[POOLS[kind]] if num is None else num
        return member_names(kind, num_wanted, self.retired)

    def set_group(self, generation: int, members: Sequence[Member]) -> None:
        """Note the trainer group; none is pending."""
        self.generation, self.group, self.pending = generation, _records(members), None

    def set_pending(self, generation: int, members: Sequence[Member]) -> None:
        """Note the group that is about to be announced."""
        self.pending = PendingGroup(generation=generation, group=_records(members))

    def set_nodes(self, nodes: Mapping[str, NodeInfo]) -> None:
        """Remember which node each planned one is."""
        self.nodes = {
            name: NodeRecord(id=node.id, address=node.address, num_gpus=node.num_gpus, labels=dict(node.labels))
            for name, node in nodes.items()
        }

    def node_infos(self) -> dict[str, NodeInfo]:
        """The nodes as the cluster names them."""
        return {
            name: NodeInfo(one.id, one.address, num_gpus=one.num_gpus, labels=one.labels)
            for name, one in self.nodes.items()
        }

    def write(self, path: Path) -> None:
        """Replace the file, whole or not at all; threads in turn, so that the newest stays. Raises OSError."""
        beside = path.with_suffix(".new")
        with self._writing:
            with beside.open("w", encoding="utf-8") as file:
                file.write(self.model_dump_json(indent=1))
                file.flush()
                os.fsync(file.fileno())
            beside.replace(path)

    @classmethod
    def read(cls, path: Path) -> Roster | None:
        """None where there is no file. Raises ValueError where it is broken."""
        try:
            return cls.model_validate_json(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None


def _records(members: Sequence[Member]) -> list[MemberRecord]:
    return [MemberRecord(name=m.name, segment=m.segment, capacity_bytes=m.capacity_bytes) for m in members]
