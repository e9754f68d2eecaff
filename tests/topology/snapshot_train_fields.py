"""Writes dspark_train/topology/train_fields.json from the installed speculators: run it after a change of version.

`draft.train` is checked against that file, so that the command line needs neither torch nor speculators.
"""

from __future__ import annotations

import json
import re
from importlib.metadata import version
from pathlib import Path
from typing import Any

FILE = Path(__file__).parents[2] / "dspark_train" / "topology" / "train_fields.json"


def snapshot() -> dict[str, Any]:
    """Every field of TrainConfig: its group and JSON schema; and the rules between fields that speculators keeps."""
    from speculators.losses.utils import _EAGER_LOSS_FN_MAP
    from speculators.train.config.resolution import _ALGORITHM_GROUP_USERS, DECODER_SHAPING_FLAGS
    from speculators.train.config.schema import _DEST_TO_GROUP, _GROUPS, TrainConfig

    root = TrainConfig.model_json_schema()["properties"]
    schemas = {None: root} | {name: model.model_json_schema()["properties"] for name, model in _GROUPS.items()}
    fields = {
        name: {"group": group or "root"} | _without(schemas[group][name], "title", "cli_bool", "cli_required")
        for name, group in _DEST_TO_GROUP.items()
    }
    return {
        "speculators": version("speculators"),
        "fields": fields,
        "algorithms": {group: sorted(users) for group, users in _ALGORITHM_GROUP_USERS.items()},
        "shaping": list(DECODER_SHAPING_FLAGS),
        "losses": sorted(_EAGER_LOSS_FN_MAP),
    }


def _without(schema: dict[str, Any], *names: str) -> dict[str, Any]:
    kept = {key: value for key, value in schema.items() if key not in names}
    # Descriptions name fields as flags (--muon-lr); in a YAML file they are keys (muon_lr).
    flags = re.sub(r"--([a-z0-9]+(?:-[a-z0-9]+)*)", lambda flag: flag[1].replace("-", "_"), kept["description"])
    return kept | {"description": flags}


if __name__ == "__main__":
    FILE.write_text(json.dumps(snapshot(), indent=1) + "\n")
    print(f"wrote {FILE}")
