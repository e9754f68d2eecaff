"""A cluster inside this process, for tests and simulations: same Protocol, with faults and a settable clock.

Members are real objects with an event loop and threads of their own; what travels is pickled as on the real cluster.
``env``, ``log`` and ``num_gpus`` of a member are accounted for, not applied.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from concurrent.futures import CancelledError, Future, TimeoutError
from dataclasses import replace
from typing import Any

from dspark_train.cluster.host import Host
from dspark_train.cluster.outcome import pack_args, unpack
from dspark_train.cluster.protocol import MemberSpec, NodeInfo
from dspark_train.errors import ClusterError, PeerLost, PeerTimeout, StartError

LOCAL = NodeInfo(id="node-0", address="127.0.0.1", num_cpus=2.0)


class FakeClock:
    """Seconds that pass only when told to. A call to a hung member costs its whole deadline, at once."""

    def __init__(self, now_s: float = 0.0) -> None:
        self._now_s = now_s
        self._lock = threading.Lock()

    def now_s(self) -> float:
        return self._now_s

    def advance(self, by_s: float) -> None:
        """Let ``by_s`` seconds pass."""
        self.advance_to(self._now_s + by_s)

    def advance_to(self, at_s: float) -> None:
        """Let time pass until ``at_s``; waits that ran side by side end at the same time."""
        with self._lock:
            self._now_s = max(self._now_s, at_s)


class FakeCluster:
    """See `protocol.Cluster`. Faults: `crash`, `hang`, `heal`, `lose_node`, `cut_node`, `drain_node`."""

    def __init__(self, nodes: Sequence[NodeInfo] = (LOCAL,), clock: FakeClock | None = None) -> None:
        self.clock = clock or FakeClock()
        self._nodes = {node.id: node for node in nodes}
        self._members: dict[str, _Member] = {}
        self._hung: set[str] = set()
        self._cut: set[str] = set()
        self._lock = threading.RLock()

    # -- the Protocol --------------------------------------------------------------------------------------------

    def nodes(self) -> list[NodeInfo]:
        return list(self._nodes.values())

    def reaches(self, node: NodeInfo) -> bool:
        return node.id in self._nodes and self._nodes[node.id].alive and node.id not in self._cut

    def create(self, spec: MemberSpec) -> None:
        with self._lock:
            if spec.name in self._members:
                raise ClusterError(f"there is a member {spec.name!r} already: end it first")
            node_id = self._place(spec)
        member = _Member(spec, node_id, self)
        try:
            unpack(member.host.built())
        except Exception as error:
            member.end()
            raise StartError(f"{spec.name} could not be made: {error}", spec.log) from error
        with self._lock:
            self._members[spec.name] = member

    def exists(self, name: str) -> bool:
        return name in self._members

    def list(self) -> list[str]:
        return sorted(self._members)

    def kill(self, name: str) -> None:
        with self._lock:
            member = self._members.pop(name, None)
            self._hung.discard(name)
        if member is not None:
            member.end()

    def call(self, name: str, method: str, *args: Any, timeout_s: float) -> Any:
        future = self._send(name, method, args, timeout_s)
        try:
            packed = future.result(timeout_s)
        except CancelledError as error:
            raise PeerLost(f"{name} died during {method}") from error
        except TimeoutError as error:
            future.cancel()
            raise PeerTimeout(f"{name} did not answer {method} within {timeout_s:g} s") from error
        return unpack(packed)

    async def acall(self, name: str, method: str, *args: Any, timeout_s: float) -> Any:
        future = self._send(name, method, args, timeout_s)
        try:
            packed = await asyncio.wait_for(asyncio.wrap_future(future), timeout_s)
        except TimeoutError as error:
            raise PeerTimeout(f"{name} did not answer {method} within {timeout_s:g} s") from error
        except asyncio.CancelledError as error:
            if future.cancelled() and not _this_task_is_cancelled():
                raise PeerLost(f"{name} died during {method}") from error
            raise
        return unpack(packed)

    def close(self) -> None:
        """Leave; members stay, as on a real cluster. Tests end them with `end_all`."""

    # -- faults --------------------------------------------------------------------------------------------------

    def crash(self, name: str) -> None:
        """Let a member die as if its process were killed; it is made anew if it has restarts left."""
        with self._lock:
            member = self._members[name]
        self.kill(name)
        if member.spec.max_restarts != 0:
            left = member.spec.max_restarts - 1 if member.spec.max_restarts > 0 else -1
            self.create(replace(member.spec, max_restarts=left))

    def hang(self, name: str) -> None:
        """Let a member stop answering, alive."""
        self._hung.add(name)

    def heal(self, name: str) -> None:
        """Let a hung member answer again."""
        self._hung.discard(name)

    def lose_node(self, node_id: str) -> None:
        """Let a node die with all members on it."""
        with self._lock:
            self._nodes[node_id] = replace(self._nodes[node_id], alive=False)
            lost = [name for name, member in self._members.items() if member.node_id == node_id]
        for name in lost:
            self.kill(name)

    def cut_node(self, node_id: str) -> None:
        """Let a node's link be cut: its members run on and answer nobody, and the cluster calls it alive."""
        self._cut.add(node_id)
        self._hung |= {name for name, member in self._members.items() if member.node_id == node_id}

    def mend_node(self, node_id: str) -> None:
        """Mend its link: members that are still known answer again."""
        self._cut.discard(node_id)
        self._hung -= {name for name, member in self._members.items() if member.node_id == node_id}

    def drain_node(self, node_id: str, leaves_at_s: float = 0.0) -> None:
        """Let somebody ask the cluster to drain a node: members on it run on."""
        with self._lock:
            self._nodes[node_id] = replace(self._nodes[node_id], is_leaving=True, leaves_at_s=leaves_at_s)

    def join_node(self, node: NodeInfo) -> None:
        """Let a node join, or come back under a new id."""
        with self._lock:
            self._nodes[node.id] = node

    def end_all(self) -> None:
        """End every member."""
        for name in self.list():
            self.kill(name)

    def spec(self, name: str) -> MemberSpec:
        """What a member was made from."""
        return self._members[name].spec

    # -- inside --------------------------------------------------------------------------------------------------

    def _place(self, spec: MemberSpec) -> str:
        used: dict[str, float] = {}
        for member in self._members.values():
            used[member.node_id] = used.get(member.node_id, 0.0) + member.spec.num_gpus
        for node in self._nodes.values():
            wanted = spec.node_id in (None, node.id)
            if wanted and node.alive and node.num_gpus - used.get(node.id, 0.0) >= spec.num_gpus:
                return node.id
        raise ClusterError(f"no node has room for {spec.name} (node {spec.node_id}, {spec.num_gpus:g} GPUs)")

    def _send(self, name: str, method: str, args: tuple[Any, ...], timeout_s: float) -> Future[bytes]:
        started_s = self.clock.now_s()
        member = self._members.get(name)
        if member is None:
            raise PeerLost(f"there is no member {name!r}")
        if name in self._hung:
            self.clock.advance_to(started_s + timeout_s)
            raise PeerTimeout(f"{name} did not answer {method} within {timeout_s:g} s")
        return member.send(method, pack_args(args))


class _Handle:
    """The cluster as one member sees it. Once the member has died, whatever thread of it comes here ends, unseen."""

    def __init__(self, cluster: FakeCluster) -> None:
        self._cluster = cluster
        self.is_dead = False

    def __getattr__(self, name: str) -> Any:
        if self.is_dead:
            raise SystemExit
        return getattr(self._cluster, name)


class _Member:
    """A member: its host, and the event loop that its calls run in."""

    def __init__(self, spec: MemberSpec, node_id: str, cluster: FakeCluster) -> None:
        self.spec, self.node_id = spec, node_id
        self._handle = _Handle(cluster)
        self.host = Host(spec, self._handle)
        self._loop = asyncio.new_event_loop()
        self._calls: set[Future[bytes]] = set()
        self._dead = False
        threading.Thread(target=self._run_loop, name=f"loop-{spec.name}", daemon=True).start()

    def send(self, method: str, packed_args: bytes) -> Future[bytes]:
        if self._dead:
            raise PeerLost(f"{self.spec.name} is dead")
        future = asyncio.run_coroutine_threadsafe(self.host.call(method, packed_args), self._loop)
        self._calls.add(future)
        future.add_done_callback(self._calls.discard)
        return future

    def end(self) -> None:
        """Cancel the calls in flight and stop the loop; a thread inside a sync method runs on, unseen."""
        self._dead = self._handle.is_dead = True
        for future in list(self._calls):
            future.cancel()
        self._loop.call_soon_threadsafe(self._loop.stop)

    def _run_loop(self) -> None:
        self._loop.run_forever()
        self._loop.run_until_complete(_cancel_all())
        self._loop.close()


def _this_task_is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def _cancel_all() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
