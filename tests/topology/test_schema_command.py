"""`dspark-train schema`, and the two files made by it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from dspark_train.cli.schema import json_schema, reference
from dspark_train.topology.phrases import all_keys
from dspark_train.topology.schema import Topology
from dspark_train.topology.train_fields import settable

ROOT = Path(__file__).parents[2]


def test_the_committed_schema_is_current() -> None:
    committed = json.loads((ROOT / "docs" / "topology.schema.json").read_text())
    assert committed == json_schema(), "run dspark-train schema > docs/topology.schema.json"


def test_the_committed_reference_is_current() -> None:
    committed = (ROOT / "docs" / "topology.md").read_text()
    assert committed == reference() + "\n", "run dspark-train schema --markdown > docs/topology.md"


def test_the_command_prints_one_json_object() -> None:
    command = [sys.executable, "-m", "dspark_train.cli.app", "schema"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT, timeout=30).stdout
    assert json.loads(printed) == json_schema()


def test_the_reference_has_every_key_and_every_training_field() -> None:
    page = reference()
    assert all(f"`{key}`" in page or f"\n## {key}\n" in page for key in all_keys(Topology))
    assert all(f"| `{name}` |" in page for name in settable())


def test_editors_are_told_the_training_fields_and_no_others() -> None:
    train: dict[str, Any] = json_schema()["$defs"]["Draft"]["properties"]["train"]
    assert train["additionalProperties"] is False
    assert train["properties"]["optimizer"]["enum"] == ["adamw", "muon"]
    assert train["properties"]["lr"]["exclusiveMinimum"] == 0
    assert "max_steps" not in train["properties"]


def test_every_section_is_closed_to_unknown_keys() -> None:
    schema = json_schema()
    sections = [schema, *schema["$defs"].values()]
    assert all(section["additionalProperties"] is False for section in sections)
