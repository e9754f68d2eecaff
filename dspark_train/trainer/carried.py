"""A sharded state on its way from one group to the next: whole, in the host memory of the old group's rank 0.

A sharded state lives in the group it was sharded over. At a planned resize the old group gathers it, the new one
shards a fresh state and takes the weights and the optimizers' state over from its rank 0. Where that is not the old
one's, as when the old one's node is drained, every rank carries the whole state across.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)

from dspark_train.trainer.state import TrainState

_GATHER = StateDictOptions(full_state_dict=True, cpu_offload=True)
_GIVE = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True, strict=False)


@dataclass(frozen=True)
class Carried:
    """Whole tensors in host memory, by the weights' names. step: optimizer steps in them."""

    step: int
    weights: dict[str, Any]
    optimizer: dict[str, Any]


def gather(state: TrainState, stays_first: bool) -> Carried | None:
    """The whole state, on rank 0; None on the others. Collective over the state's group.

    stays_first: whether this rank is known to be rank 0 of the next group. Unless rank 0 is, all get the whole state.
    """
    weights = get_model_state_dict(state.model, options=_GATHER)
    # Before the first step torch would make an optimizer state that counts one.
    optimizer = get_optimizer_state_dict(state.model, state.optimizers, options=_GATHER) if state.step else {}
    carried = Carried(state.step, weights, optimizer) if state.group.rank == 0 else None
    if state.group.broadcast_object(stays_first):
        return carried
    whole: Carried = state.group.broadcast_object(carried)
    return whole


def take_over(state: TrainState, carried: Carried | None) -> None:
    """Give a fresh sharded state what rank 0 carried; without it the state stays as it is. Collective.

    Separately for weights and optimizers: torch's call for both at once hangs where only rank 0 has anything.
    """
    group = state.group
    carried = carried if group.rank == 0 else None
    step = int(group.broadcast_object(carried.step if carried is not None else 0))
    if step == 0:
        return
    # torch puts shards into the dictionaries it is given; what is carried must last should this group break.
    weights = _copied(carried.weights) if carried is not None else {}
    optimizer = _copied(carried.optimizer) if carried is not None else {}
    set_model_state_dict(state.model, weights, options=_GIVE)
    set_optimizer_state_dict(state.model, state.optimizers, optimizer, options=_GIVE)
    state.rewind(step)


def _copied(value: Any) -> Any:
    """The same tensors in dictionaries and lists of their own."""
    if isinstance(value, dict):
        return {key: _copied(inner) for key, inner in value.items()}
    return [_copied(inner) for inner in value] if isinstance(value, list) else value
