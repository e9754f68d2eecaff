"""Warming a rank up before it joins a group: what is slow the first time is done while the others still train."""

from __future__ import annotations

import torch

from dspark_train.trainer.packs import padding
from dspark_train.trainer.ring import PackShape
from dspark_train.trainer.state import TrainState
from dspark_train.trainer.step import autocast


def warm(state: TrainState, shape: PackShape) -> None:
    """One forward and backward pass over an empty pack, and the optimizers' state made.

    Changes no weight, leaves no gradient; the random generators are as before. Not for sharded states.
    """
    state.build()
    devices = [state.device] if state.device.type == "cuda" else []
    with torch.random.fork_rng(devices):
        state.model.train()
        with autocast(state.device):
            _, loss, _ = state.model(**padding(state.draft, shape, state.device), **state.draft.train_kwargs)
        state.backward(loss, 0.0)
    state.zero_grad()
    if state.step == 0:
        state.named()
        state.zero_grad()
        state.forget_optimizer_state()
