"""Whether a run may go on under a changed topology. Pure.

What a step trains on follows from target, draft, data and seed: those must be the same. Counts, placement, time-outs
and the run's length may change.
"""

from __future__ import annotations

from typing import Any

from dspark_train.errors import UsageError
from dspark_train.topology.resolve import Resolved

FIXED = (
    "target.layers",
    "target.dtype",
    "draft",
    "data.seq_len",
    "data.step_packs",
    "data.validation_frac",
    "run.seed",
)


def check_resumable(old: Resolved, new: Resolved) -> None:
    """Raises UsageError naming each value that would change what the steps train on."""
    before, after = old.topology.model_dump(mode="json"), new.topology.model_dump(mode="json")
    changed = [
        f"{key}: {_at(before, key)} in the run, {_at(after, key)} now"
        for key in FIXED
        if _at(before, key) != _at(after, key)
    ]
    if changed:
        raise UsageError(
            "this topology cannot resume that run, its steps would train on other data or another draft: "
            + "; ".join(changed)
            + ". Undo the changes, or start a new run"
        )


def _at(tree: Any, key: str) -> Any:
    for part in key.split("."):
        tree = tree[part]
    return tree
