"""Rules between the fields of `draft.train`. Pure.

speculators keeps them only on its own command line, which is not used here, or deep in a model.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dspark_train.topology.phrases import show
from dspark_train.topology.source import Finding


def findings(train: Mapping[str, Any], algorithm: str, snapshot: Mapping[str, Any]) -> Iterator[Finding]:
    """What is wrong between the fields of ``train``, each of which is right by itself.

    snapshot: of speculators' schema.
    """
    yield from _one_origin(train, algorithm, snapshot["shaping"])
    if "loss_fn" in train and train["loss_fn"] is not None:
        yield from _loss(train["loss_fn"], snapshot["losses"])
    if (
        train.get("per_position_loss_weight") == "dpace"
        and train.get("loss_fn", "ce" if algorithm == "dflash" else None) != "ce"
    ):
        yield Finding("draft.train.per_position_loss_weight", '("dpace") weighs cross-entropy alone', "set loss_fn: ce")
    if algorithm == "mtp" and "draft_attn_impl" in train:
        yield Finding("draft.train.draft_attn_impl", "has no effect: mtp takes the target's own layers", "remove it")
    if algorithm == "dflash2" and train.get("draft_vocab_size"):
        yield Finding("draft.train.draft_vocab_size", "does not go with dflash2, which ranks all tokens", "remove it")
    if _confidence_without_markov(train, algorithm):
        remedy = "set confidence_head_with_markov: false, or a markov_rank above 0"
        yield Finding("draft.train.markov_rank", "(0) leaves the confidence head without its input", remedy)


def _confidence_without_markov(train: Mapping[str, Any], algorithm: str) -> bool:
    wanted = train.get("enable_confidence_head", True) and train.get("confidence_head_with_markov", True)
    return algorithm == "dspark" and wanted and train.get("markov_rank") == 0


def _one_origin(train: Mapping[str, Any], algorithm: str, shaping_fields: Sequence[str]) -> Iterator[Finding]:
    shaping = [name for name in shaping_fields if name in train]
    if train.get("from_pretrained"):
        shaping += ["draft_config"] if train.get("draft_config") else []
        reason, remedy = "is already decided by draft.train.from_pretrained", "remove one of the two"
    elif algorithm == "mtp":
        shaping += ["draft_config"] if train.get("draft_config") else []
        reason, remedy = "has no effect: mtp takes the target's own layers", "remove it"
    elif train.get("draft_config"):
        reason, remedy = "is already decided by draft.train.draft_config", "remove one of the two"
    else:
        return
    for name in shaping:
        yield Finding(f"draft.train.{name}", reason, remedy)


def _loss(spec: str, names: Sequence[str]) -> Iterator[Finding]:
    """A loss is a name, or a JSON object of names and weights."""
    if spec in names:
        return
    key, remedy = "draft.train.loss_fn", f"""use one of {", ".join(names)}, or '{{"ce": 0.1, "tv": 0.9}}'"""
    try:
        parsed = json.loads(spec)
    except json.JSONDecodeError:
        yield Finding(key, f"({show(spec)}) is not a known loss", remedy)
        return
    if not isinstance(parsed, dict) or not parsed:
        yield Finding(key, f"({show(spec)}) is not a loss", remedy)
        return
    for name, weight in parsed.items():
        if name not in names:
            yield Finding(key, f"names the unknown loss {name}", remedy)
        elif isinstance(weight, bool) or not isinstance(weight, int | float):
            yield Finding(key, f"gives {name} the weight {show(weight)}", "give each loss a number")
