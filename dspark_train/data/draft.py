"""What a draft's own files say of it, and the refusal of one that does not belong to its target.

Read as JSON, without torch or speculators. The rules are `topology/pairing.py`'s.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dspark_train.data.target import model_directory
from dspark_train.errors import DataError, PairingError, Problem
from dspark_train.topology.facts import TargetFacts
from dspark_train.topology.pairing import OTHER_TARGET, DraftFacts, Wanted, mismatches
from dspark_train.topology.resolve import Resolved

PROVENANCE = "dspark_train.json"
"""Beside a draft that `export` wrote: how it was trained, and what it is served with."""
_LAYERS = ("aux_hidden_state_layer_ids", "eagle_aux_hidden_state_layer_ids")


def read_draft_facts(draft: str) -> DraftFacts | None:
    """The facts of a draft's directory, or of a hub id from the local Hugging Face cache; None where it is not here.

    Raises DataError where there is a directory that holds no draft of speculators' format.
    """
    directory = model_directory(draft)
    if directory is None:
        return None
    config = _config(directory)
    layer, served = _mapping(config, "transformer_layer_config"), _mapping(config, "speculators_config")
    verifier, methods = _mapping(served, "verifier"), served.get("proposal_methods")
    method = methods[0] if isinstance(methods, list) and methods and isinstance(methods[0], dict) else {}
    layers = next((config[key] for key in _LAYERS if config.get(key)), None)
    return DraftFacts(
        where=draft,
        algorithm=str(config["speculators_model_type"]),
        target=str(verifier.get("name_or_path") or ""),
        architectures=tuple(map(str, verifier.get("architectures") or ())),
        identity=str(read_provenance(directory).get("target_identity") or ""),
        hidden_size=config.get("target_hidden_size") or layer.get("hidden_size"),
        vocab_size=layer.get("vocab_size"),
        draft_vocab_size=config.get("draft_vocab_size"),
        layer_ids=tuple(layers) if layers else None,
        num_speculative_tokens=method.get("speculative_tokens"),
    )


def read_provenance(directory: Path) -> dict[str, Any]:
    """What `export` wrote beside the draft; {} for a draft from elsewhere."""
    try:
        found = json.loads((directory / PROVENANCE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def run_facts(resolved: Resolved, run: str) -> DraftFacts:
    """The facts of a run's own draft, as its target was when the run was launched."""
    facts, train = resolved.facts, resolved.train
    return DraftFacts(
        where=run,
        algorithm=resolved.topology.draft.algorithm,
        target=resolved.topology.target.model,
        architectures=facts.architectures,
        identity=facts.identity,
        hidden_size=facts.hidden_size,
        vocab_size=facts.vocab_size,
        draft_vocab_size=train.get("draft_vocab_size"),
        layer_ids=resolved.topology.target.layers,
    )


def check_pair(
    draft: DraftFacts, target: TargetFacts, name: str, wanted: Wanted | None = None, *, other_target: bool = False
) -> None:
    """Raises PairingError with every reason why the draft does not belong to the target ``name``."""
    found = mismatches(draft, target, name, wanted, other_target=other_target)
    if not found:
        return
    was = f" (trained for {draft.target})" if draft.target else ""
    text = f"{draft.where}{was} and target {name} do not belong together: {'; '.join(found)}"
    if all(reason.startswith(OTHER_TARGET) and "other weights" in reason for reason in found):
        text += ": name its own target, or allow it with --other-target (draft.other_target of a topology)"
    else:
        text += ": name the target that it was trained for, or another draft"
    raise PairingError(text)


def check_start(resolved: Resolved) -> str:
    """Hold the draft that a topology starts from (draft.train.from_pretrained) to its target.

    Returns what could not be checked, "" else. Raises PairingError, DataError.
    """
    start = resolved.train.get("from_pretrained")
    if not start:
        return ""
    draft, topology = read_draft_facts(str(start)), resolved.topology
    if draft is None:
        return f"draft.train.from_pretrained ({start}) is not on this machine: whether it fits shows when ranks load it"
    wanted = Wanted(
        algorithm=topology.draft.algorithm,
        layer_ids=topology.target.layers,
        draft_vocab_size=resolved.train.get("draft_vocab_size"),
    )
    check_pair(draft, resolved.facts, topology.target.model, wanted, other_target=topology.draft.other_target)
    return ""


def _config(directory: Path) -> dict[str, Any]:
    path = directory / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError([Problem(str(path), 0, "", "cannot be read as a draft's config", "name an export")]) from error
    if not isinstance(config, dict) or not config.get("speculators_model_type"):
        text = "has no speculators_model_type, so it is no draft of speculators' format"
        raise DataError([Problem(str(path), 0, "", text, "name a directory that `dspark-train export` wrote")])
    return config


def _mapping(value: dict[str, Any], key: str) -> dict[str, Any]:
    found = value.get(key)
    return found if isinstance(found, dict) else {}
