"""A day of 72 nodes and a thousand engines."""

from __future__ import annotations

import time
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


@pytest.mark.sim
@pytest.mark.timeout(1200)
def test_a_day_of_72_nodes_is_simulated_in_less_than_a_minute() -> None:
    scenario = read(ROOT / "scenarios" / "72-nodes.yaml")
    resolved = resolve(load(ROOT / "topologies" / "gb300-3node.yaml", scenario.set), TargetFacts())
    settings = Settings.of(resolved)
    start = Split(resolved.topology.engines.count.start, resolved.topology.trainers.ranks.start)
    began = time.process_time()
    course = run(settings, scenario, start, "balance", 0, None)
    assert time.process_time() - began < 60
    assert max(split.num_engines for split in course.splits) > 900
    # 600 engines of 0.5/s at the start, 1000 are best: one wins 300/s of 500/s by a move that takes ten minutes.
    assert course.of_ideal > 0.97
