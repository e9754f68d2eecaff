"""What a rank has for as long as it lives: its store client, its data set and schedule, its draft.

Built once at the start, in the order of what fails soonest.
"""

from __future__ import annotations

import copy
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from dspark_train.data.dataset import Dataset
from dspark_train.errors import StartError
from dspark_train.schedule.steps import Schedule, ScheduleSpec
from dspark_train.schedule.unit import Unit
from dspark_train.store.protocol import StoreClient
from dspark_train.topology.resolve import Resolved
from dspark_train.trainer import peaks
from dspark_train.trainer.carried import Carried
from dspark_train.trainer.checkpoint import Checkpointer
from dspark_train.trainer.drafts import Draft, build_draft
from dspark_train.trainer.ring import PackRing, PackShape
from dspark_train.trainer.state import TrainState

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass
class Parts:
    """A rank's possessions. The ring and the state come with its first group, and stay for the next where they can.

    carried: what a sharded state left in host memory for the next group.
    """

    resolved: Resolved
    device: torch.device
    store: StoreClient
    dataset: Dataset
    schedule: Schedule
    draft: Draft | None
    log: logging.Logger
    state: TrainState | None = None
    ring: PackRing | None = None
    carried: Carried | None = None
    checkpointer: Checkpointer | None = None
    is_warm: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def unit_at(self, index: int) -> Unit | None:
        """The schedule's unit, None beyond the last; for any thread."""
        with self._lock:
            return self.schedule.unit(index) if index < self.schedule.num_units else None

    @property
    def shape(self) -> PackShape:
        """Of the pack buffers. Only once the draft was built, which needs the target's figures."""
        resolved = self.resolved
        assert resolved.facts.hidden_size is not None
        return PackShape(
            seq_len=resolved.topology.data.seq_len,
            num_layers=resolved.num_layers_stored,
            hidden_size=resolved.facts.hidden_size,
            dtype=_DTYPES[resolved.hidden_dtype],
        )

    def ring_for(self, world_size: int) -> PackRing:
        """An empty ring that holds ``prefetch_steps`` of a rank's share in a group of that size.

        The old one is kept where it is large enough. Raises StoreError where the memory cannot be registered.
        """
        topology = self.resolved.topology
        num_slots = topology.trainers.prefetch_steps * -(-topology.data.step_packs // world_size)
        if self.ring is not None and self.ring.num_slots >= num_slots:
            self.ring.clear()
            return self.ring
        self.drop_ring()
        ring = PackRing(self.shape, num_slots, pinned=self.device.type == "cuda")
        self.store.register(ring.address, ring.num_bytes)
        self.ring = ring
        return ring

    def drop_ring(self) -> None:
        """Unregister and free the ring; nothing may read or fill it any more."""
        if self.ring is not None:
            self.store.unregister(self.ring.address)
            self.ring = None

    @property
    def is_sharded(self) -> bool:
        return self.resolved.topology.trainers.sharding == "fsdp"

    def fresh_state(self) -> TrainState:
        """A state from the initial weights: from the draft built at the start, or from one built now.

        A sharded state is made anew for every group, in the pause between two: its draft is kept, and copied.
        """
        draft = self.draft or build_draft(self.resolved, dataset_dir(self.resolved))
        self.draft = draft if self.is_sharded else None  # a state changes its draft's weights
        if self.is_sharded:
            draft = replace(draft, model=copy.deepcopy(draft.model))
        topology = self.resolved.topology
        self.state = TrainState(draft, self.device, topology.trainers.sharding, self.schedule.num_steps)
        return self.state

    def settle(self, ended: Callable[[], bool] = lambda: False) -> None:
        """Until no checkpoint of an earlier group is being written, or ``ended()``. Raises CheckpointError."""
        if self.checkpointer is not None:
            self.checkpointer.wait(ended)

    @property
    def step_in_memory(self) -> int | None:
        """Optimizer steps in what is in memory, None where nothing is."""
        if self.state is not None:
            return self.state.step
        return self.carried.step if self.carried is not None else None


def dataset_dir(resolved: Resolved) -> Path:
    """Where the prepared data set lies."""
    return Path(resolved.topology.data.path)


def connect_store(resolved: Resolved, owner: str, host: str, master: str) -> StoreClient:
    """A client with a segment of its own; owner: this rank; host: its address. Raises StoreError."""
    from dspark_train.store.connect import connect

    return connect(
        resolved.topology.store,
        owner=owner,
        host=host,
        master=master,
        segment_bytes=resolved.segment_bytes,
        timeout_s=resolved.topology.trainers.fetch_timeout_s,
    )


def build_parts(resolved: Resolved, open_store: Callable[[], StoreClient], log: logging.Logger) -> Parts:
    """Open the data set, build the draft, then connect to the store. Raises DataError, StartError, StoreError."""
    device = torch.device("cuda", 0) if resolved.device == "cuda" else torch.device("cpu")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise StartError("the plan gives this rank a GPU, and torch finds none: check the driver and the torch build")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    torch.set_num_threads(resolved.topology.trainers.cpu_threads)
    dataset = Dataset.open(dataset_dir(resolved))
    schedule = Schedule(ScheduleSpec.of(resolved.topology, dataset.lengths))
    log.info("data set: %d samples, %d steps, %d units", len(dataset), schedule.num_steps, schedule.num_units)
    draft = build_draft(resolved, dataset_dir(resolved))
    num_trained = sum(weight.numel() for weight in draft.model.parameters() if weight.requires_grad)
    log.info("draft: %s with %.1f M trained weights", resolved.topology.draft.algorithm, num_trained / 1e6)
    parts = Parts(resolved, device, open_store(), dataset, schedule, draft, log)
    # Beside the start of engines and group, which takes longer; a sample that comes before it has ended waits for it.
    threading.Thread(target=peaks.prepare, args=(parts.shape.dtype,), name="compile", daemon=True).start()
    return parts
