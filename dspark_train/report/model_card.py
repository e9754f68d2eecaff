"""The model card of an exported draft: what it is, its figures, how it was made, and how it is served."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from dspark_train.data.target import is_hub_id
from dspark_train.plan.serving import METHODS
from dspark_train.topology.pairing import DraftFacts

NAMES = {
    "dspark": "DSpark",
    "dflash": "DFlash",
    "dflash2": "DFlash 2",
    "eagle3": "EAGLE-3",
    "peagle": "P-EAGLE",
    "mtp": "MTP",
}
CARD = "README.md"


def model_card(told: dict[str, Any], draft: DraftFacts, name: str, size: dict[str, Any]) -> str:
    """The card as Markdown with the hub's header.

    told: a provenance. draft: the export's own facts. name: what the draft is called. size: num_weights, dtype.
    """
    target = public_name(told["target"])
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    method = METHODS.get(told["algorithm"])
    served = {**method, "model": name, "num_speculative_tokens": draft.num_speculative_tokens} if method else None
    return environment.get_template("model_card.md.j2").render(
        header=yaml.safe_dump(header(told), sort_keys=False).strip(),
        told=told,
        draft=draft,
        name=name,
        size=size,
        kind=NAMES.get(told["algorithm"], told["algorithm"]),
        target=target,
        served=json.dumps(served) if served else "",
        train={key: value for key, value in told["train"].items() if not isinstance(value, dict | list)},
    )


def header(told: dict[str, Any]) -> dict[str, Any]:
    """The card's metadata. Without a licence: that is for the one who publishes it to say."""
    found: dict[str, Any] = {"library_name": "speculators", "pipeline_tag": "text-generation"}
    if is_hub_id(told["target"]):
        found["base_model"] = told["target"]
    return found | {"tags": ["speculative-decoding", "speculators", told["algorithm"]]}


def public_name(target: str) -> str:
    """A target's name without the directories of this machine."""
    return target if is_hub_id(target) else Path(target).name
