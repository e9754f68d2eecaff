"""From a checkpoint to a Hugging Face directory that speculators loads back and vLLM serves; verified when written."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import dataclass
from pathlib import Path

import torch

from dspark_train.data.draft import check_pair, run_facts
from dspark_train.data.target import read_target_facts
from dspark_train.errors import CheckpointError, UsageError
from dspark_train.topology.resolve import Resolved
from dspark_train.trainer.checkpoint import LOAD_ERRORS, load_newest, read
from dspark_train.trainer.checkpoint_files import Found
from dspark_train.trainer.drafts import Draft, build_draft, load_export, save_export
from dspark_train.trainer.parts import dataset_dir

CONFIG = "config.json"


@dataclass(frozen=True)
class Exported:
    """What an export holds. num_weights: of the tensors in its files; rejected: newer checkpoints that do not load."""

    path: str
    algorithm: str
    target: str
    dtype: str
    num_speculative_tokens: int
    num_weights: int
    num_bytes: int
    step: int | None = None
    rejected: tuple[str, ...] = ()


def export_checkpoint(
    resolved: Resolved, checkpoints: Path, out: Path, step: int | None = None, *, other_target: bool = False
) -> Exported:
    """Write the newest loadable checkpoint (or that of ``step``) to ``out``, replacing an earlier export there.

    Weights are in the type of the run's hidden states. Raises CheckpointError where none loads or the written
    directory does not load back, UsageError where ``out`` holds something else, PairingError where the target's files
    are no more those of the model that the run was launched with; other_target: they may be with other weights.
    """
    _refuse_foreign(out)
    target = resolved.topology.target.model
    now = read_target_facts(resolved.facts.path or target)
    check_pair(run_facts(resolved, str(checkpoints.parent)), now, target, other_target=other_target)
    draft = build_draft(resolved, dataset_dir(resolved))
    found, rejected = load_newest(checkpoints, lambda found: _read_weights(found, draft), step)
    model = draft.model.to(getattr(torch, resolved.hidden_dtype))
    partial = out.with_name(out.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        save_export(model, partial)
        _compare(model.state_dict(), load_export(partial).state_dict(), partial)
    except OSError as error:
        shutil.rmtree(partial, ignore_errors=True)
        raise CheckpointError(f"the export to {out} could not be written: {error}") from error
    if out.exists():
        shutil.rmtree(out)
    partial.rename(out)
    return _described(out, found.step, tuple(rejected))


def verify_export(directory: Path) -> Exported:
    """Load an export and see that no weight is missing or not finite. Raises CheckpointError."""
    model = load_export(directory)
    bad = [name for name, weight in model.named_parameters() if not torch.isfinite(weight).all()]
    if bad:
        raise CheckpointError(f"{directory}: weights are not finite: {', '.join(bad)}")
    return _described(directory)


def _read_weights(found: Found, draft: Draft) -> None:
    state = draft.model.state_dict()
    wanted = {name: value for name, value in state.items() if name not in draft.unsaved_names()}
    try:
        read({"model": wanted}, found.path)
        draft.model.load_state_dict(wanted, strict=False)
    except LOAD_ERRORS as error:
        raise CheckpointError(f"{found.path}: {type(error).__name__}: {error}") from error


def _compare(wanted: dict[str, torch.Tensor], loaded: dict[str, torch.Tensor], directory: Path) -> None:
    wrong = [name for name in wanted if name not in loaded or not torch.equal(wanted[name], loaded[name])]
    if wrong:
        raise CheckpointError(f"{directory}: loaded back, these weights differ: {', '.join(wrong)}")


def _refuse_foreign(out: Path) -> None:
    if out.exists() and not (out.is_dir() and (not any(out.iterdir()) or (out / CONFIG).is_file())):
        raise UsageError(f"{out} exists and is no export: name another directory with --out")


def _described(directory: Path, step: int | None = None, rejected: tuple[str, ...] = ()) -> Exported:
    from safetensors import safe_open

    config = json.loads((directory / CONFIG).read_text(encoding="utf-8"))
    served = config["speculators_config"]
    num_weights, files = 0, sorted(directory.glob("*.safetensors"))
    for file in files:
        with safe_open(file, framework="pt") as tensors:
            num_weights += sum(math.prod(tensors.get_slice(name).get_shape()) for name in tensors.keys())  # noqa: SIM118
    return Exported(
        path=str(directory),
        algorithm=str(served["algorithm"]),
        target=str(served["verifier"]["name_or_path"]),
        dtype=str(config.get("dtype", "")),
        num_speculative_tokens=int(served["proposal_methods"][0]["speculative_tokens"]),
        num_weights=num_weights,
        num_bytes=sum(file.stat().st_size for file in files),
        step=step,
        rejected=rejected,
    )
