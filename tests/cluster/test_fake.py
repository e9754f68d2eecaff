"""The fake's faults and clock."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dspark_train.cluster.fake import FakeCluster
from dspark_train.cluster.protocol import MemberSpec, NodeInfo
from dspark_train.errors import ClusterError, PeerLost, PeerTimeout

COUNTER = "tests.cluster.member_examples:Counter"


@pytest.fixture
def fake() -> Iterator[FakeCluster]:
    cluster = FakeCluster([NodeInfo("n0", "10.0.0.1", num_gpus=2), NodeInfo("n1", "10.0.0.2", num_gpus=1)])
    yield cluster
    cluster.end_all()


def test_a_hung_member_costs_the_whole_deadline_of_virtual_time_and_none_of_ours(fake: FakeCluster) -> None:
    fake.create(MemberSpec("m", COUNTER, {"start": 0}))
    fake.hang("m")
    with pytest.raises(PeerTimeout):
        fake.call("m", "add", 1, timeout_s=600.0)
    assert fake.clock.now_s() == 600.0
    fake.heal("m")
    assert fake.call("m", "add", 1, timeout_s=600.0) == 1
    assert fake.clock.now_s() == 600.0


def test_a_crashed_member_is_gone_or_back_empty_if_it_may_restart(fake: FakeCluster) -> None:
    fake.create(MemberSpec("once", COUNTER, {"start": 0}))
    fake.create(MemberSpec("again", COUNTER, {"start": 0}, max_restarts=1))
    fake.call("again", "add", 5, timeout_s=5)
    fake.crash("once")
    fake.crash("again")
    with pytest.raises(PeerLost):
        fake.call("once", "add", 1, timeout_s=5)
    assert fake.call("again", "add", 1, timeout_s=5) == 1
    fake.crash("again")
    assert fake.list() == []


def test_gpus_are_given_once_and_come_back(fake: FakeCluster) -> None:
    fake.create(MemberSpec("a", COUNTER, {"start": 0}, num_gpus=2))
    fake.create(MemberSpec("b", COUNTER, {"start": 0}, num_gpus=1))
    with pytest.raises(ClusterError, match="no node has room for c"):
        fake.create(MemberSpec("c", COUNTER, {"start": 0}, num_gpus=1))
    fake.kill("b")
    fake.create(MemberSpec("c", COUNTER, {"start": 0}, num_gpus=1))


def test_a_lost_node_takes_its_members_with_it_and_gets_no_more(fake: FakeCluster) -> None:
    fake.create(MemberSpec("a", COUNTER, {"start": 0}, node_id="n0"))
    fake.create(MemberSpec("b", COUNTER, {"start": 0}, node_id="n1"))
    fake.lose_node("n0")
    assert fake.list() == ["b"]
    assert [node.alive for node in fake.nodes()] == [False, True]
    with pytest.raises(ClusterError):
        fake.create(MemberSpec("a", COUNTER, {"start": 0}, node_id="n0"))
