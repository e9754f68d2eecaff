"""Looking at all nodes: on the shipped fake, and on a real Ray of two nodes."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from dspark_train.cluster.checks import Need
from dspark_train.cluster.fake import FakeCluster
from dspark_train.cluster.inspect_nodes import inspect_nodes, rounds
from dspark_train.cluster.protocol import Cluster, NodeInfo


@pytest.fixture
def need(tmp_path: Path) -> Need:
    return Need(tmp_path / "runs")


def test_every_node_is_asked_and_nothing_is_left(need: Need) -> None:
    cluster = FakeCluster([NodeInfo(f"node-{number}", "127.0.0.1") for number in range(3)])
    findings, fleet = inspect_nodes(cluster, replace(need, num_nodes=4), loads=False, rates=True)
    assert sorted(fleet.facts) == [f"127.0.0.1/node-{number}" for number in range(3)]
    assert ("nodes", "failed", "3 nodes answer; the topology needs 4") in [
        (f.check, f.status, f.text) for f in findings
    ]
    assert ("runs", "ok", "all nodes") in [(f.check, f.status, f.node) for f in findings]
    assert cluster.list() == []
    assert list(need.runs_dir.iterdir()) == []


@pytest.mark.parametrize("num_nodes", [1, 2, 3, 4, 18])
def test_in_a_round_every_node_sends_once_and_receives_once(num_nodes: int) -> None:
    played = rounds(num_nodes)
    assert len(played) == min(num_nodes - 1, 3)
    for pairs in played:
        assert {count for side in zip(*pairs, strict=True) for count in Counter(side).values()} == {1}
        assert all(source != to for source, to in pairs)
    if num_nodes <= 4:
        assert len({pair for pairs in played for pair in pairs}) == num_nodes * (num_nodes - 1)


@pytest.mark.real
def test_a_real_node_is_looked_at_and_left_as_it_was(ray_cluster: Cluster, need: Need) -> None:
    before = ray_cluster.list()
    findings, fleet = inspect_nodes(ray_cluster, need, loads=False, rates=True)
    assert len(fleet.facts) == 1
    assert [finding for finding in findings if finding.status == "failed"] == []
    assert ("runs", "ok") in [(finding.check, finding.status) for finding in findings]
    assert ray_cluster.list() == before
    assert list(need.runs_dir.iterdir()) == []
