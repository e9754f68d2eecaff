"""One rank in the test's process, with its hub and its store."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from dspark_train.data.dataset import Dataset
from dspark_train.store.in_memory import InMemoryServer
from dspark_train.topology.resolve import Resolved
from dspark_train.trainer.group import GroupSpec
from dspark_train.trainer.rank import Rank
from tests.trainer.elastic import ElasticHub
from tests.trainer.recorded import SEGMENT_BYTES, Hub, HubPeers, Join, schedule_of


class Seat:
    """A started rank of a group of one, its hub and its store."""

    def __init__(self, root: Path, **withheld: Any) -> None:
        self.hub = Hub(schedule_of(root), **withheld)
        self.server = InMemoryServer()
        client = self.server.client(SEGMENT_BYTES)
        resolved = Resolved.model_validate_json((root / "resolved.json").read_text())
        data = Dataset.open(resolved.topology.data.path)
        peers = HubPeers(self.hub, data, client.put, num_layers=resolved.num_layers_stored)
        self.rank = Rank(str(root), "rank-0", peers, store=client)

    def start(self) -> dict[str, Any]:
        return self.rank.start({"n": "127.0.0.1"}, {})

    def join(self, generation: int = 1, resume_step: int | None = None) -> dict[str, int]:
        address, port = self.rank.reserve_rendezvous()
        self.hub.call("begin", Join(1, resume_step, generation), port)
        unit, _ = self.hub.call("group", generation)
        return self.rank.join(GroupSpec(generation, 1, 0, address, port, unit, resume_step))

    def status(self) -> dict[str, Any]:
        return asyncio.run(self.rank.status())


class ElasticSeat(Seat):
    """As a controller that resizes has it: one ledger all along."""

    hub: ElasticHub

    def spec(self, generation: int, unit: int, world_size: int = 1, rank: int = 0) -> GroupSpec:
        address, port = self.rank.reserve_rendezvous()
        return GroupSpec(generation, world_size, rank, address, port, unit)


def elastic_seat(root: Path, **withheld: Any) -> ElasticSeat:
    seat = ElasticSeat(root)
    seat.hub = seat.rank._peers._hub = ElasticHub(schedule_of(root), **withheld)  # type: ignore[attr-defined]
    seat.start()
    return seat


def schedule_path(root: Path) -> Path:
    return Path(Resolved.model_validate_json((root / "resolved.json").read_text()).topology.data.path)
