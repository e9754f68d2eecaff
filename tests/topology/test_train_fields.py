"""`draft.train` against speculators' own schema."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from dspark_train.topology import train_fields
from dspark_train.topology.schema import Topology

from . import snapshot_train_fields


@pytest.mark.torch
def test_the_snapshot_is_that_of_the_installed_speculators() -> None:
    committed = json.loads(snapshot_train_fields.FILE.read_text())
    assert committed == snapshot_train_fields.snapshot(), "run python tests/topology/snapshot_train_fields.py"


@pytest.mark.torch
def test_what_we_accept_speculators_accepts() -> None:
    from speculators.train.config.schema import TrainConfig

    fields = {name: schema for name, schema in train_fields.settable().items() if schema.get("default") is not None}
    for name, schema in fields.items():
        users = train_fields.snapshot()["algorithms"].get(schema["group"], ["dspark"])
        assert list(train_fields.findings({name: schema["default"]}, users[0])) == []
        assert TrainConfig.from_flat({name: schema["default"]}).flatten()[name] == schema["default"]


def test_every_key_that_stands_for_a_field_is_a_key_of_the_topology() -> None:
    from dspark_train.topology.phrases import all_keys

    assert set(train_fields.OWNED.values()) <= set(all_keys(Topology))


def test_owned_and_unused_fields_are_fields_of_speculators() -> None:
    known = set(train_fields.snapshot()["fields"])
    assert set(train_fields.OWNED) - {"hidden_states_path"} <= known
    assert set(train_fields.UNUSED) <= known


@pytest.mark.parametrize(
    "train",
    [
        {"lr": 1, "optimizer": "adamw", "num_layers": None},
        {"loss_fn": "ce", "per_position_loss_weight": "dpace"},
        {"loss_fn": '{"ce": 0.1, "tv": 0.9}', "full_attention_indices": [0, 2]},
        {"markov_rank": 0, "confidence_head_with_markov": False},
        {"markov_rank": 0, "enable_confidence_head": False},
        {"draft_config": "some/config", "block_size": 8},
    ],
)
def test_right_fields_pass(train: dict[str, Any]) -> None:
    assert list(train_fields.findings(train, "dspark")) == []


@pytest.mark.parametrize(
    ("train", "key", "text"),
    [
        ({"num_layers": "two"}, "num_layers", '("two") is not a whole number'),
        ({"full_attention_indices": [0, "x"]}, "full_attention_indices[1]", '("x") is not a whole number'),
        ({"fc_norm": 1}, "fc_norm", "(1) is not true or false"),
        ({"lr": float("inf")}, "lr", "(Infinity) is not a finite number"),
        ({"scheduler_warmup_ratio": 2}, "scheduler_warmup_ratio", "(2) is above 1"),
        ({"loss_fn": '{"mse": 1}'}, "loss_fn", "names the unknown loss mse"),
        ({"loss_fn": '{"ce": "all"}'}, "loss_fn", 'gives ce the weight "all"'),
        ({"per_position_loss_weight": "dpace"}, "per_position_loss_weight", '("dpace") weighs cross-entropy alone'),
        ({"draft_config": "a", "num_layers": 2}, "num_layers", "is already decided by draft.train.draft_config"),
        ({"selector_rank": 4}, "selector_rank", "is a field of dflash2, not of dspark"),
        ({"xpress_rank": 4}, "xpress_rank", "is a field of xpress, not of dspark"),
    ],
)
def test_wrong_fields_are_named(train: dict[str, Any], key: str, text: str) -> None:
    (finding,) = train_fields.findings(train, "dspark")
    assert finding[:2] == (f"draft.train.{key}", text)


def test_loading_a_topology_imports_neither_torch_nor_speculators() -> None:
    code = (
        "import sys; from dspark_train.topology.load import load; load('topologies/quickstart.yaml');"
        "print([m for m in ('torch', 'speculators', 'ray', 'vllm', 'transformers', 'numpy') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
