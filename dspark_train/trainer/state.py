"""What training changes: the draft's weights, its optimizers, the learning-rate schedules, and how far it is.

Owns how this state is laid out over the ranks (whole on each, or sharded), how it becomes one dictionary keyed by the
weights' names, whatever the layout, and how a rank gets it from rank 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import torch
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)

from dspark_train.schedule.messages import Commit
from dspark_train.trainer.drafts import Draft, shard
from dspark_train.trainer.gradients import GradientSum
from dspark_train.trainer.process_group import ProcessGroup

Sharding = Literal["replicate", "fsdp"]


class TrainState:
    """The draft in training. ``step`` counts optimizer steps done.

    In each group: `enter`, then load, then `share`. A replicated state may enter one group after another; a sharded one
    lives in the group it was sharded over, and a new one is made from a fresh draft (see `carried`).
    """

    def __init__(self, draft: Draft, device: torch.device, sharding: Sharding, num_steps: int) -> None:
        self.draft, self.device, self.sharding, self.num_steps = draft, device, sharding, num_steps
        self.step = 0
        self.uncommitted: Commit | None = None
        """Of the last unit that is in this state, while it is not known that the ledger has it."""
        self.is_torn = False
        """Whether it is half another rank's: that one was lost while it gave its state."""
        self.model = draft.model
        self.optimizers: list[torch.optim.Optimizer] = []
        self.schedulers: list[torch.optim.lr_scheduler.LRScheduler] = []
        self._base_lrs: list[list[float]] = []
        self._gradients: GradientSum | None = None

    def build(self) -> None:
        """Move the draft to the device and make its optimizers; once. A sharded one is sharded before."""
        if self.optimizers:
            return
        self.model.to(self.device)
        if not self.is_sharded:
            trained = [weight for weight in self.model.parameters() if weight.requires_grad]
            self._gradients = GradientSum(trained, self.device)
        self.optimizers = self.draft.optimizers(self.model)
        self._base_lrs = [[float(g["lr"]) for g in optimizer.param_groups] for optimizer in self.optimizers]
        self.schedulers = self.draft.schedulers(self.optimizers, self.num_steps)

    def enter(self, group: ProcessGroup) -> None:
        """Belong to this group from now on. The first time, build the optimizers, over sharded weights if so asked."""
        self.group = group
        if self.is_sharded:
            assert not self.optimizers, "a sharded state cannot change its group"
            self.model.to(self.device)
            for weight in self._weights():
                group.broadcast(weight)
            shard(self.model, self.device.type, group.world_size, group.spec.generation)
        self.build()

    def share(self) -> None:
        """Give every replica rank 0's weights, optimizer state and step. A sharded state has its share by then."""
        if not self.is_sharded and self.group.world_size > 1:
            step = int(self.group.broadcast_object(self.step))
            states = self.named()["optimizer"]["state"] if step > 0 else {}
            self.is_torn = self.group.rank != 0
            for weight in self._weights():
                self.group.broadcast(weight)
            for name in sorted(states):
                for key in sorted(states[name]):
                    self.group.broadcast(states[name][key])
            if step != self.step:
                self.rewind(step)
            self.group.check()
            self.is_torn = False
        self.uncommitted = None

    def forget_optimizer_state(self) -> None:
        """As before the first step. Memory is kept where the device's allocator keeps it."""
        for optimizer in self.optimizers:
            optimizer.state.clear()

    @property
    def is_sharded(self) -> bool:
        return self.sharding == "fsdp"

    def loss_weight(self, num_packs: int) -> float:
        """What a pack's loss is multiplied with, so that the exchanged gradients are those of the mean over packs.

        A sharded draft averages gradients over the ranks in every backward pass; replicas add them up once.
        """
        return (self.group.world_size if self.is_sharded else 1) / num_packs

    def backward(self, loss: torch.Tensor, weight: float) -> None:
        """Add the gradients of ``weight * loss`` to those of the step."""
        (loss * weight).backward()

    def exchange_gradients(self) -> None:
        """Give every replica the whole step's gradients, once, after all passes; a sharded draft has them already."""
        if self._gradients is not None:
            self._gradients.exchange(self.group)

    def zero_grad(self) -> None:
        """Begin a step, whatever became of the one before."""
        if self._gradients is not None:
            self._gradients.clear()
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)

    def clip_grad_norm(self, max_norm: float) -> float:
        """Scale the gradients down to this norm over all of them; returns the norm they had."""
        weights = [weight for weight in self.model.parameters() if weight.grad is not None]
        norm = torch.nn.utils.clip_grad_norm_(weights, max_norm)
        return float(norm.full_tensor() if hasattr(norm, "full_tensor") else norm)

    def advance(self) -> None:
        """Step optimizers and schedules."""
        for optimizer in self.optimizers:
            optimizer.step()
        for scheduler in self.schedulers:
            scheduler.step()
        self.step += 1

    def learning_rates(self) -> dict[str, float]:
        """The next step's "lr", AdamW's, and "muon_lr" where Muon is used."""
        rates = {type(o).__name__: float(o.param_groups[0]["lr"]) for o in self.optimizers}
        named = {"lr": rates.get("AdamW", next(iter(rates.values())))}
        return named | ({"muon_lr": rates["Muon"]} if "Muon" in rates else {})

    # -- as a dictionary ---------------------------------------------------------------------------------------------

    def named(self) -> dict[str, Any]:
        """The state by the weights' names: {"model", "optimizer"}; tensors are the live ones (sharded ones stay so).

        Weights that are copied from the target at every start are left out. Before the first step this makes an empty
        optimizer state that counts one step (torch's way): good to load into, not to be saved.
        """
        weights = get_model_state_dict(self.model)
        for name in self.draft.unsaved_names():
            del weights[name]
        return {"model": weights, "optimizer": get_optimizer_state_dict(self.model, self.optimizers)}

    def load(self, saved: dict[str, Any], step: int) -> None:
        """Take over a state of the form of `named`. Raises ValueError or RuntimeError where it does not fit."""
        result = set_model_state_dict(self.model, saved["model"], options=StateDictOptions(strict=False))
        missing = set(result.missing_keys) - self.draft.unsaved_names()
        if missing or result.unexpected_keys:
            raise ValueError(f"weights missing: {sorted(missing)}, unknown: {sorted(result.unexpected_keys)}")
        set_optimizer_state_dict(self.model, self.optimizers, saved["optimizer"])
        self.rewind(step)

    def rewind(self, step: int) -> None:
        """Set the learning rates as they are after ``step`` steps: they follow from the step alone."""
        self.step = step
        for optimizer, rates in zip(self.optimizers, self._base_lrs, strict=True):
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = group["initial_lr"] = rate
        for scheduler in self.schedulers:
            scheduler.last_epoch, scheduler._step_count = step - 1, step + 1
            scheduler.step()

    def _weights(self) -> Iterator[torch.Tensor]:
        unsaved = self.draft.unsaved_names()
        tensors = {**dict(self.model.named_parameters()), **dict(self.model.named_buffers())}
        return (tensors[name].data for name in sorted(tensors) if name not in unsaved)
