"""A member that nobody calls stops itself."""

import asyncio
import threading
import time

from dspark_train.cluster.fake import FakeCluster
from dspark_train.cluster.host import Host
from dspark_train.cluster.outcome import pack_args
from dspark_train.cluster.protocol import MemberSpec

TIMEOUT_S = 10.0


class Stoppable:
    stopped = threading.Event()

    def __init__(self, peers):
        self.peers = peers

    async def stop(self, grace_s):
        self.stopped.set()


def test_a_member_that_nobody_calls_is_stopped_and_its_process_ended():
    ended = threading.Event()
    began_s = time.monotonic()
    host = Host(MemberSpec("m", "tests.cluster.test_host:Stoppable", fence_s=0.2), FakeCluster())
    host.fence(ended.set)
    assert ended.wait(TIMEOUT_S)
    assert Stoppable.stopped.is_set()
    assert time.monotonic() - began_s >= 0.2


def test_a_call_puts_the_end_off():
    ended = threading.Event()
    host = Host(MemberSpec("m", "tests.cluster.test_host:Stoppable", fence_s=0.3), FakeCluster())
    host.fence(ended.set)
    assert not ended.wait(0.15)
    called_s = time.monotonic()
    asyncio.run(host.call("stop", pack_args((0.0,))))
    assert ended.wait(TIMEOUT_S)
    assert time.monotonic() - called_s >= 0.3
