"""What every cluster must do; run against the fake and, marked `real`, against Ray."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from dspark_train.cluster.outcome import RemoteError
from dspark_train.cluster.protocol import Cluster, MemberSpec
from dspark_train.errors import ClusterError, DSparkError, PeerLost, PeerTimeout, StartError

EXAMPLES = "tests.cluster.member_examples"
REPOSITORY = str(Path(__file__).parents[2])
CALL_S = 20.0


def spec(name: str = "m", **changes: Any) -> MemberSpec:
    fields: dict[str, Any] = {
        "factory": f"{EXAMPLES}:Counter",
        "kwargs": {"start": 0},
        "env": {"PYTHONPATH": REPOSITORY},
    }
    return MemberSpec(name=name, **{**fields, **changes})


def _ask(cluster: Cluster, how: str, *call: Any) -> Any:
    if how == "call":
        return cluster.call(*call, timeout_s=CALL_S)
    return asyncio.run(cluster.acall(*call, timeout_s=CALL_S))


def test_a_member_keeps_its_state_and_answers_sync_and_async_methods(cluster: Cluster) -> None:
    cluster.create(spec(kwargs={"start": 10}))
    assert cluster.call("m", "add", 1, timeout_s=CALL_S) == 11
    assert cluster.call("m", "add_async", 2, timeout_s=CALL_S) == 13
    assert asyncio.run(cluster.acall("m", "add", 3, timeout_s=CALL_S)) == 16
    assert asyncio.run(cluster.acall("m", "add_async", 4, timeout_s=CALL_S)) == 20


def test_members_reach_each_other_by_name(cluster: Cluster) -> None:
    cluster.create(spec("a"))
    cluster.create(spec("b", kwargs={"start": 100}))
    assert cluster.call("a", "ask", "b", 1, timeout_s=CALL_S) == 101
    assert cluster.call("a", "ask_async", "b", 1, timeout_s=CALL_S) == 102
    assert cluster.call("a", "members", timeout_s=CALL_S) == ["a", "b"]


def test_a_blocked_method_does_not_block_others_of_the_member(cluster: Cluster) -> None:
    cluster.create(spec())
    answers: list[str] = []
    waiter = threading.Thread(target=lambda: answers.append(cluster.call("m", "wait_for_release", timeout_s=CALL_S)))
    waiter.start()
    assert cluster.call("m", "add_async", 1, timeout_s=CALL_S) == 1
    cluster.call("m", "release", timeout_s=CALL_S)
    waiter.join(CALL_S)
    assert answers == ["released"]


def test_an_error_travels_as_itself_with_its_traceback_in_the_notes(cluster: Cluster) -> None:
    cluster.create(spec())
    with pytest.raises(StartError) as caught:
        cluster.call("m", "fail", "ours", timeout_s=CALL_S)
    assert (caught.value.what, caught.value.log) == ("engine-1 died", "logs/engine-1.log")
    assert "in fail" in "".join(caught.value.__notes__)
    with pytest.raises(KeyError, match="no such thing"):
        asyncio.run(cluster.acall("m", "fail", "plain", timeout_s=CALL_S))


@pytest.mark.parametrize("ask", ["call", "acall"])
def test_a_timeout_that_a_method_raises_is_not_taken_for_one_of_the_call(cluster: Cluster, ask: str) -> None:
    cluster.create(spec())
    with pytest.raises(TimeoutError, match="of its own"):
        _ask(cluster, ask, "m", "fail", "timeout")


def test_an_error_that_cannot_travel_arrives_as_its_text(cluster: Cluster) -> None:
    cluster.create(spec())
    with pytest.raises(RemoteError, match="AwkwardError: 1/2"):
        cluster.call("m", "fail", "awkward", timeout_s=CALL_S)


def test_a_result_that_cannot_travel_is_an_error_that_says_so(cluster: Cluster) -> None:
    cluster.create(spec())
    with pytest.raises(TypeError, match="the result function cannot be pickled"):
        cluster.call("m", "fail", "unpicklable", timeout_s=CALL_S)


@pytest.mark.parametrize("method", ["_private", "no_such", "__init__"])
def test_only_public_methods_can_be_called(cluster: Cluster, method: str) -> None:
    cluster.create(spec())
    with pytest.raises(DSparkError, match=f"m .*has no method '{method}'"):
        cluster.call("m", method, timeout_s=CALL_S)


def test_a_call_ends_at_its_deadline_and_an_async_method_is_cancelled(cluster: Cluster) -> None:
    cluster.create(spec())
    started_s = time.monotonic()
    with pytest.raises(PeerTimeout, match=r"m did not answer sleep within 0\.2 s"):
        cluster.call("m", "sleep", 2.0, timeout_s=0.2)
    with pytest.raises(PeerTimeout, match=r"m did not answer wait_cancelled within 0\.2 s"):
        cluster.call("m", "wait_cancelled", timeout_s=0.2)
    with pytest.raises(PeerTimeout):
        asyncio.run(cluster.acall("m", "sleep", 2.0, timeout_s=0.2))
    assert time.monotonic() - started_s < 5.0
    deadline_s = time.monotonic() + CALL_S
    while cluster.call("m", "add", 0, timeout_s=CALL_S) != -1:
        assert time.monotonic() < deadline_s, "the async method was not cancelled"


def test_who_does_not_exist_is_lost(cluster: Cluster) -> None:
    with pytest.raises(PeerLost, match="no member 'nobody'"):
        cluster.call("nobody", "add", 1, timeout_s=CALL_S)
    with pytest.raises(PeerLost, match="no member 'nobody'"):
        asyncio.run(cluster.acall("nobody", "add", 1, timeout_s=CALL_S))


def test_a_killed_member_is_gone_and_its_name_free_again(cluster: Cluster) -> None:
    cluster.create(spec())
    assert cluster.exists("m")
    assert cluster.list() == ["m"]
    cluster.kill("m")
    assert not cluster.exists("m")
    assert cluster.list() == []
    with pytest.raises(PeerLost):
        cluster.call("m", "add", 1, timeout_s=CALL_S)
    cluster.kill("m")
    cluster.create(spec(kwargs={"start": 5}))
    assert cluster.call("m", "add", 0, timeout_s=CALL_S) == 5


def test_calls_in_flight_to_a_killed_member_are_lost_at_once(cluster: Cluster) -> None:
    cluster.create(spec())
    caught: list[Exception] = []

    def ask(how: str) -> None:
        try:
            _ask(cluster, how, "m", "wait_for_release")
        except Exception as error:  # noqa: BLE001 - the test looks at it
            caught.append(error)

    waiters = [threading.Thread(target=ask, args=(how,)) for how in ("call", "acall")]
    for waiter in waiters:
        waiter.start()
    assert cluster.call("m", "add", 1, timeout_s=CALL_S) == 1
    cluster.kill("m")
    for waiter in waiters:
        waiter.join(CALL_S)
    assert [type(error) for error in caught] == [PeerLost, PeerLost]


def test_a_name_is_given_once(cluster: Cluster) -> None:
    cluster.create(spec())
    with pytest.raises(ClusterError, match=r"a member 'm'.*already"):
        cluster.create(spec())
    assert cluster.call("m", "add", 1, timeout_s=CALL_S) == 1


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        (f"{EXAMPLES}:Unbuildable", "m could not be made: no model here"),
        (f"{EXAMPLES}:Nobody", "m could not be made: .*Nobody cannot be imported"),
        ("no.such.module:X", r"m could not be made: no\.such\.module:X cannot be imported"),
    ],
)
def test_a_member_that_cannot_be_built_says_why_and_leaves_nothing(
    cluster: Cluster, factory: str, message: str
) -> None:
    with pytest.raises(StartError, match=message):
        cluster.create(spec(factory=factory, kwargs={}))
    assert not cluster.exists("m")


def test_what_has_no_room_is_refused_with_what_there_is(cluster: Cluster) -> None:
    with pytest.raises(ClusterError, match=r"m .*GPUs"):
        cluster.create(spec(num_gpus=64, create_timeout_s=2.0))
    with pytest.raises(ClusterError, match=r"m .*node"):
        cluster.create(spec(node_id="ab" * 28, create_timeout_s=10.0))
    assert cluster.list() == []


def test_a_member_goes_to_the_node_it_was_meant_for(cluster: Cluster) -> None:
    (node,) = cluster.nodes()
    assert node.alive
    assert node.address == "127.0.0.1"
    assert node.num_cpus >= 1
    cluster.create(spec(node_id=node.id))
    assert cluster.exists("m")
