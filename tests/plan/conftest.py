"""Resolved topologies that the tests of the plan share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from dspark_train.topology.facts import TargetFacts
from dspark_train.topology.load import load
from dspark_train.topology.resolve import Resolved, resolve

TOPOLOGIES = Path(__file__).parents[2] / "topologies"
SMOL = TargetFacts(
    num_layers=30,
    hidden_size=576,
    vocab_size=49152,
    intermediate_size=1536,
    num_attention_heads=9,
    num_key_value_heads=3,
    head_dim=64,
    weight_bytes=269_060_552,
    is_local=True,
    path="/models/target",
    source="/models/target/config.json",
)

Resolve = Callable[..., Resolved]


@pytest.fixture
def shipped() -> Resolve:
    """Resolves a shipped topology by name, with overrides; the target's facts are SmolLM2's for the quickstart."""

    def make(name: str, *overrides: str, facts: TargetFacts | None = None) -> Resolved:
        known = facts or (SMOL if name == "quickstart" else TargetFacts())
        return resolve(load(TOPOLOGIES / f"{name}.yaml", overrides), known)

    return make
