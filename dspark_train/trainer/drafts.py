"""The draft model through speculators: built for training, saved and loaded in its Hugging Face format.

The only module that imports speculators. It owns how a resolved topology becomes speculators' own configuration;
losses, models, optimizers and learning-rate schedules are theirs. Nothing here knows of ranks, stores or steps.
"""

from __future__ import annotations

import contextlib
import json
from argparse import Namespace
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from speculators.model import SpeculatorModel
from speculators.models.eagle3.data import shift_batch
from speculators.models.eagle3.rotary_partial import install_partial_neox_rotary
from speculators.models.mtp.data import shift_batch_mtp
from speculators.train.cli import build_draft_model
from speculators.train.config import TrainConfig
from speculators.train.data import CollateFn
from speculators.train.optimizers import build_optimizers
from speculators.train.vocab_mapping import build_vocab_mappings_from_distribution, get_target_vocab_size
from speculators.utils.loading import is_config_only_dir
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from transformers import get_cosine_schedule_with_warmup, get_linear_schedule_with_warmup

from dspark_train.errors import CheckpointError, DataError, Problem, StartError
from dspark_train.topology.resolve import Resolved
from dspark_train.trainer.figures import Figures, mtp_figures
from dspark_train.trainer.muon import use_float32_on_cpu

Sample = dict[str, torch.Tensor]
Batch = dict[str, torch.Tensor]
TOKEN_FREQ = "token_freq.pt"
_PREPROCESS: dict[str, Callable[[Sample], Sample]] = {
    "eagle3": shift_batch,
    "peagle": shift_batch,
    "mtp": shift_batch_mtp,
}
_BUILD_ERRORS = (ValueError, TypeError, KeyError, AttributeError, RuntimeError, OSError)


@dataclass(frozen=True)
class Draft:
    """A draft model ready to be trained, with what its forward pass and its optimizers need.

    model: fp32 master weights, on CPU, frozen copies of the target's embedding and head included.
    train_kwargs, validate_kwargs: passed to the forward pass beside the batch.
    layer_ids: the target's hidden-state ids that the draft reads, in order, without the last layer.
    preprocess: applied to each sample before packing, or None where the samples are used as they are.
    """

    model: Any
    train_kwargs: dict[str, Any]
    validate_kwargs: dict[str, Any]
    layer_ids: tuple[int, ...]
    preprocess: Callable[[Sample], Sample] | None
    args: Namespace

    def unsaved_names(self) -> frozenset[str]:
        """Weights that are copied from the target again at every start, so no checkpoint holds them."""
        ignored = set(self.model._keys_to_ignore_on_save or ())
        frozen = {name for name, weight in self.model.named_parameters() if not weight.requires_grad}
        return frozenset(ignored & frozen)

    def optimizers(self, model: Any) -> list[torch.optim.Optimizer]:
        """The optimizers over ``model`` (the draft's own, sharded or not). Build them after sharding."""
        use_float32_on_cpu()
        return list(build_optimizers(model, self.args))

    def schedulers(
        self, optimizers: list[torch.optim.Optimizer], num_steps: int
    ) -> list[torch.optim.lr_scheduler.LRScheduler]:
        """One learning-rate schedule for each optimizer, over ``num_steps`` steps; none for type "none"."""
        if self.args.scheduler_type == "none":
            return []
        warmup, total = schedule_steps(self.args, num_steps)
        if self.args.scheduler_type == "linear":
            return [get_linear_schedule_with_warmup(o, warmup, total) for o in optimizers]
        cycles = self.args.scheduler_num_cosine_cycles
        return [get_cosine_schedule_with_warmup(o, warmup, total, num_cycles=cycles) for o in optimizers]

    def figures(self, outputs: Any, batch: Batch, sums: Figures) -> Figures:
        """The figures of a pack as pairs of sums and totals, from what a forward pass over ``batch`` gave."""
        if self.args.speculator_type != "mtp":
            return sums
        return mtp_figures(outputs, batch["input_ids"], batch["loss_mask"], sums)

    def collate(self, samples: list[Sample], seq_len: int) -> Batch:
        """Preprocess samples and pack them as speculators does, in copies (for algorithms with a ``preprocess``)."""
        hidden_size = int(self.model.config.transformer_layer_config.hidden_size)
        dtype = samples[0]["hidden_states"].dtype if samples else torch.float32
        collate = CollateFn(seq_len, hidden_size, len(self.layer_ids), dtype, self.preprocess)
        batch = collate(samples)
        return {key: value for key, value in batch.items() if isinstance(value, torch.Tensor)}


def build_draft(resolved: Resolved, dataset_dir: Path) -> Draft:
    """Build the draft of a run, on every rank alike: from ``from_pretrained``, else at random from the run's seed.

    dataset_dir: where `prepare` wrote the token frequencies that a reduced vocabulary is chosen from. Raises DataError
    where they are missing, StartError where speculators cannot build the draft.
    """
    with _build_errors(f"the {resolved.topology.draft.algorithm} draft for {resolved.topology.target.model}"):
        config = TrainConfig.from_flat(resolved.train)
        args = Namespace(**config.flatten())
        if not args.draft_mrope_full_head_hack:
            install_partial_neox_rotary()
        model = _published(args, dataset_dir) if args.from_pretrained else _fresh(args, dataset_dir)
        SpeculatorModel.verify_training_compatible(model)
        if args.gradient_checkpointing:
            model.gradient_checkpointing_enable()
        train_kwargs, validate_kwargs = type(model).get_trainer_kwargs(**vars(args))
    _check_layers(args, tuple(model.target_layer_ids))
    return Draft(
        model=model.float(),
        train_kwargs=train_kwargs,
        validate_kwargs=validate_kwargs,
        layer_ids=tuple(model.target_layer_ids),
        preprocess=_PREPROCESS.get(args.speculator_type),
        args=args,
    )


def _fresh(args: Namespace, dataset_dir: Path) -> Any:
    d2t, t2d, vocab_size = vocab_mappings(args, dataset_dir)
    torch.manual_seed(args.seed)
    return build_draft_model(args, SpeculatorModel.registry[args.speculator_type], t2d, d2t, vocab_size)


def _published(args: Namespace, dataset_dir: Path) -> Any:
    """A draft from ``from_pretrained``, with its own vocabulary, on this run's target.

    A published config names the target by where its author had it: the topology's is read instead. A directory with a
    config and no weights gives the draft's shape, and is initialised at random.
    """
    model_class = SpeculatorModel.registry[args.speculator_type]
    found, _ = model_class.config_class.get_config_dict(args.from_pretrained)
    kind = found.get("speculators_model_type")
    if kind != args.speculator_type:
        what = f"is a {kind} draft, not {args.speculator_type}" if kind else "is not in speculators' format"
        raise StartError(f"draft.train.from_pretrained: {args.from_pretrained} {what}")
    config = model_class.config_class.from_pretrained(args.from_pretrained)
    config.speculators_config.verifier.name_or_path = args.verifier_name_or_path
    if args.speculator_type == "mtp":
        args.num_speculative_steps = config.num_speculative_steps
    else:
        config.transformer_layer_config._attn_implementation = args.draft_attn_impl
    if not is_config_only_dir(args.from_pretrained):
        return model_class.from_pretrained(args.from_pretrained, config=config)
    args.draft_vocab_size = config.draft_vocab_size
    d2t, t2d, _ = vocab_mappings(args, dataset_dir)
    torch.manual_seed(args.seed)
    model = model_class(config=config)
    model.load_vocab_mappings(t2d, d2t)
    model.load_verifier_weights()
    return model


def _check_layers(args: Namespace, layer_ids: tuple[int, ...]) -> None:
    """Not of mtp: it reads the last layer alone, which every sample ends with."""
    wanted = tuple(args.target_layer_ids)
    if args.speculator_type != "mtp" and layer_ids != wanted:
        own, given = (", ".join(map(str, ids)) for ids in (layer_ids, wanted))
        raise StartError(
            f"the draft of {args.from_pretrained} reads layers {own}, and target.layers is {given}: set it so"
        )


def vocab_mappings(args: Namespace, dataset_dir: Path) -> tuple[torch.Tensor | None, torch.Tensor | None, int]:
    """Draft-to-target offsets [draft vocabulary], target-to-draft mask [target vocabulary], and the draft's size.

    Both are None where the draft keeps the target's vocabulary. Never falls back to the full vocabulary: raises
    DataError where a reduced one is asked for and the frequencies of the data set's tokens are missing.
    """
    full_size = int(get_target_vocab_size(None, args.verifier_name_or_path, args.trust_remote_code))
    if args.d2t_path and args.t2d_path:
        d2t, t2d = (torch.from_numpy(np.load(path)) for path in (args.d2t_path, args.t2d_path))
        return d2t, t2d, int(d2t.shape[0])
    size = args.draft_vocab_size
    if args.speculator_type == "mtp" or size is None or size == full_size:
        return None, None, full_size
    if size > full_size:
        raise StartError(f"draft_vocab_size ({size}) is above the target's vocabulary ({full_size}): lower it")
    path = Path(args.token_freq_path) if args.token_freq_path else dataset_dir / TOKEN_FREQ
    if not path.is_file():
        raise DataError(
            [
                Problem(
                    str(path),
                    0,
                    "",
                    f"does not exist, and draft_vocab_size is {size}",
                    "run `dspark-train prepare` again, or leave draft_vocab_size out to train on the full vocabulary",
                )
            ]
        )
    d2t, t2d = build_vocab_mappings_from_distribution(torch.load(path, weights_only=True), size, full_size)
    return d2t, t2d, size


def schedule_steps(args: Namespace, num_steps: int) -> tuple[int, int]:
    """Warm-up and total steps of the learning-rate schedule, by speculators' rules.

    ``scheduler_total_steps`` wins over the run's length; ``scheduler_warmup_steps`` over ``scheduler_warmup_ratio``
    over one hundredth of the total.
    """
    total = args.scheduler_total_steps if args.scheduler_total_steps is not None else num_steps
    if args.scheduler_warmup_steps is not None:
        return args.scheduler_warmup_steps, total
    if args.scheduler_warmup_ratio is None:
        return total // 100, total
    if not 0 <= args.scheduler_warmup_ratio <= 1:
        raise StartError(f"draft.train.scheduler_warmup_ratio is {args.scheduler_warmup_ratio}: it must be in [0, 1]")
    return int(total * args.scheduler_warmup_ratio), total


def shard(model: Any, device: str, num_ranks: int, generation: int) -> None:
    """Shard the weights over the default process group in place (FSDP2, by decoder layers), as speculators does.

    generation: of the group. Torch remembers by a mesh's shape and names which shard is its own, so that a rank that
    has another place in a later group of the same size would take its old one there: each mesh has a name of its own.
    """
    mesh = init_device_mesh(device, (num_ranks,), mesh_dim_names=(f"generation_{generation}",))
    param_dtype = torch.float32 if device == "cpu" else torch.bfloat16
    policy = MixedPrecisionPolicy(param_dtype=param_dtype, reduce_dtype=torch.float32)
    for layer in model.layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)


def save_export(model: Any, directory: Path, state_dict: dict[str, torch.Tensor] | None = None) -> None:
    """Write a draft in speculators' Hugging Face format: config.json and safetensors."""
    model.save_pretrained(directory, state_dict=state_dict)


def load_export(directory: Path, attn_impl: str | None = "sdpa", target: str | None = None) -> Any:
    """Load a draft that was exported; the target's own weights are read from the target it names.

    attn_impl: attention of the loaded model ("sdpa" runs everywhere). target: where the target is now, if it was moved.
    Raises CheckpointError where the draft does not load.
    """
    try:
        config_class = SpeculatorModel.registry[_algorithm(directory)].config_class
        config = config_class.from_pretrained(directory)
        if target is not None:
            config.speculators_config.verifier.name_or_path = target
        config.transformer_layer_config._attn_implementation = attn_impl
        return SpeculatorModel.from_pretrained(str(directory), config=config)
    except _BUILD_ERRORS as error:
        raise CheckpointError(f"{directory} does not load as a draft: {error}") from error


def _algorithm(directory: Path) -> str:
    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    return str(config["speculators_model_type"])


@contextlib.contextmanager
def _build_errors(what: str) -> Iterator[None]:
    try:
        yield
    except _BUILD_ERRORS as error:
        raise StartError(f"{what} could not be built: {type(error).__name__}: {error}") from error
