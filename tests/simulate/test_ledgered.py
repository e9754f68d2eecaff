"""Samples through the real ledger: the same as in the fluid, but for whole steps."""

from __future__ import annotations

from pathlib import Path

import pytest

from dspark_train.balance.rule import Settings
from dspark_train.balance.seen import Split
from dspark_train.simulate.read import read
from dspark_train.simulate.run import run
from dspark_train.topology.facts import TargetFacts
from dspark_train.topology.load import load
from dspark_train.topology.resolve import resolve

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("start", [Split(2, 6), Split(6, 2), Split(1, 7)])
def test_the_ledger_and_the_fluid_agree_to_two_steps(start: Split) -> None:
    scenario = read(ROOT / "scenarios" / "ledger.yaml").model_copy(update={"hours": 0.5})
    resolved = resolve(load(ROOT / "topologies" / "single-node.yaml", scenario.set), TargetFacts())
    settings = Settings.of(resolved)
    fluid = run(settings, scenario.model_copy(update={"flow": "fluid"}), start, "static", 0, None)
    exact = run(settings, scenario, start, "static", 0, resolved)
    # A pack of 4096 tokens holds at most 4 samples of 1024 or more: a step of 24 packs has at most 96.
    assert 0 <= fluid.samples - exact.samples < 2 * 96


def test_the_balance_leaves_a_bad_start_sample_by_sample_as_well() -> None:
    scenario = read(ROOT / "scenarios" / "ledger.yaml").model_copy(update={"hours": 0.25})
    resolved = resolve(load(ROOT / "topologies" / "single-node.yaml", scenario.set), TargetFacts())
    course = run(Settings.of(resolved), scenario, Split(6, 2), "balance", 0, resolved)
    assert [move.to for move in course.moves] == [Split(2, 6)]
