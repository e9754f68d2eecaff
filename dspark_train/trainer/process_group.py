"""One generation of the trainer group over torch.distributed: formed, used for collectives, dissolved."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import psutil
import torch
import torch.distributed as dist

from dspark_train.errors import StartError
from dspark_train.trainer.agreement import Agreement, gather
from dspark_train.trainer.connections import Connections
from dspark_train.trainer.group import GroupBroken, GroupSpec


class Rendezvous:
    """The store that a group meets at, served from rank 0's process: its port is bound before anyone hears of it."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout = timedelta(seconds=timeout_s)
        self.server = dist.TCPStore(
            "localhost", 0, is_master=True, wait_for_workers=False, timeout=self._timeout, use_libuv=True
        )

    @property
    def port(self) -> int:
        return int(self.server.port)


class ProcessGroup:
    """The ranks of one generation. Collectives are over all of them, in fp order that depends on their number only.

    Made by :func:`form`; end it with :meth:`dissolve`.
    """

    def __init__(
        self, spec: GroupSpec, device: torch.device, agreement: Agreement, timeout_s: float, connections: Connections
    ) -> None:
        self.spec, self.device = spec, device
        self._agreement, self._connections = agreement, connections
        self.writers = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout_s))
        """For checkpoints, which are written beside training: its collectives must not meet those of training."""

    @property
    def rank(self) -> int:
        return self.spec.rank

    @property
    def world_size(self) -> int:
        return self.spec.world_size

    def agree(self, ended: Callable[[], bool]) -> bool:
        """See `Agreement.reach`."""
        return self._agreement.reach(ended)

    def tell_done(self) -> None:
        """See `Agreement.tell_done`."""
        self._agreement.tell_done()

    def all_done(self, ended: Callable[[], bool]) -> bool:
        """See `Agreement.all_done`."""
        return self._agreement.all_done(ended)

    def part(self, ended: Callable[[], bool]) -> None:
        """See `Agreement.part`."""
        self._agreement.part(self.rank == 0, ended)

    def check(self) -> None:
        """Raise GroupBroken where the group was cut: what its last collective gave may be anything."""
        if self._connections.is_cut:
            raise GroupBroken(f"generation {self.spec.generation} was cut")

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """Sum over the ranks, in place; on CPU or the device."""
        if self.world_size > 1:
            moved = values.to(self.device) if dist.get_backend() == "nccl" else values
            dist.all_reduce(moved)
            if moved is not values:
                values.copy_(moved)
        return values

    def broadcast(self, tensor: torch.Tensor) -> None:
        """Give every rank rank 0's values, in place; on CPU or the device."""
        if self.world_size > 1:
            moved = tensor.to(self.device) if dist.get_backend() == "nccl" else tensor
            dist.broadcast(moved, src=0)
            if moved is not tensor:
                tensor.copy_(moved)

    def broadcast_object(self, value: Any) -> Any:
        """Give every rank rank 0's small, picklable value."""
        if self.world_size == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0, device=self.device if dist.get_backend() == "nccl" else None)
        return box[0]

    def gather_objects(self, value: Any) -> list[Any]:
        """Every rank's small, picklable value, by rank."""
        if self.world_size == 1:
            return [value]
        values: list[Any] = [None] * self.world_size
        dist.all_gather_object(values, value)
        return values


def dissolve() -> None:
    """Leave the group that this process is in; twice is fine. Pending collectives of other ranks fail."""
    if dist.is_initialized():
        dist.destroy_process_group()


def abort(connections: Connections) -> None:
    """Make this process's collectives of a group fail now; for any thread. Dissolve it afterwards."""
    connections.cut()
    if dist.is_initialized() and dist.get_backend() == "nccl":
        dist.distributed_c10d._get_default_group().abort()


def is_broken(error: RuntimeError) -> bool:
    """Whether an error out of a collective says that the group broke: gloo has no error class of its own."""
    return isinstance(error, dist.DistError) or "gloo" in str(error)


def form(
    spec: GroupSpec,
    run: str,
    device: torch.device,
    own_address: str,
    timeout_s: float,
    served: Rendezvous | None,
    connections: Connections,
    ended: Callable[[], bool],
) -> ProcessGroup:
    """Form the group: returns once every rank is there. served: the rendezvous, where this process serves it.

    Waits for rank 0 as long as its process lives, and from then on ``timeout_s`` for the others. Raises StartError
    where they do not come, where the rendezvous is gone, or once ``ended()``.
    """
    where = f"rank {spec.rank} of {spec.world_size} could not join its group ({spec.address}:{spec.port}, generation"
    where = f"{where} {spec.generation})"
    _use_card_of(own_address)
    if device.type == "cuda":
        # Else an error out of NCCL ends the process, and an abort leaves the training thread with wrong numbers.
        os.environ.setdefault("TORCH_NCCL_BLOCKING_WAIT", "1")
    try:
        meeting, agreeing = _stores(spec, run, timeout_s, "localhost" if served is not None else spec.address)
        if not gather(meeting, spec.rank, spec.world_size, timeout_s, ended):
            raise StartError(f"{where}: it was halted before")
        dist.init_process_group(
            "nccl" if device.type == "cuda" else "gloo",
            store=meeting,
            rank=spec.rank,
            world_size=spec.world_size,
            timeout=timedelta(seconds=timeout_s),
            device_id=device if device.type == "cuda" else None,
        )
        agreement = Agreement(agreeing, spec.world_size, connections.is_whole)
        group = ProcessGroup(spec, device, agreement, timeout_s, connections)
        dist.barrier(group=group.writers)
    except (RuntimeError, ValueError, TimeoutError) as error:
        raise StartError(f"{where} within {timeout_s:g} s: {error}") from error
    connections.settle()
    return group


def _stores(spec: GroupSpec, run: str, timeout_s: float, host: str) -> list[dist.PrefixStore]:
    """For forming the group, and for agreeing in it: two connections, since a client is held by one call at a time."""
    timeout = timedelta(seconds=timeout_s)
    return [
        dist.PrefixStore(
            f"{run}/{spec.generation}/{what}",
            dist.TCPStore(host, spec.port, is_master=False, timeout=timeout, wait_for_workers=False),
        )
        for what in ("group", "agree")
    ]


def _use_card_of(address: str) -> None:
    """Have gloo and NCCL use the network card that carries ``address``, unless the environment names another.

    Left to themselves they take what the host name resolves to, which can be a slow card, or the loopback one.
    """
    cards = psutil.net_if_addrs().items()
    card = next((name for name, entries in cards if any(entry.address == address for entry in entries)), "")
    if card:
        for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
            os.environ.setdefault(name, card)
