"""The cluster as Ray knows it: one generic actor class hosts every member. The only module that imports ray.

Every member is a detached actor with a deterministic name in the run's namespace. Nothing here decides anything.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import ray
from ray import exceptions as ray_errors
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from dspark_train.cluster.host import MAX_CALLS, Host, log_tail
from dspark_train.cluster.outcome import pack_args, unpack
from dspark_train.cluster.output import first_lines, redirect_output
from dspark_train.cluster.protocol import MemberSpec, NodeInfo
from dspark_train.cluster.reach import bounded, probe
from dspark_train.errors import ClusterError, PeerLost, PeerTimeout, StartError

ASK_TIMEOUT_S = 10.0
"""One question to the head: which nodes, which members."""
KILL_TIMEOUT_S = 15.0
"""From the order to end a member until its name is free."""
POLL_S = 0.05
HEAD_RESOURCE = "node:__internal_head__"
FENCED_CODE = 70
"""Exit code of a member that stopped itself; it is not restarted, having no restarts."""
T = TypeVar("T")


class MemberActor:
    """The actor class of every member. Wrapped by `RayCluster.create`; built only inside a worker of Ray."""

    def __init__(self, spec: MemberSpec, namespace: str) -> None:
        if spec.log:
            redirect_output(spec.log)
        self._host = Host(spec, RayCluster(namespace))
        if spec.fence_s > 0:
            self._host.fence(partial(os._exit, FENCED_CODE))

    async def built(self) -> bytes:
        return self._host.built()

    async def call(self, method: str, packed_args: bytes) -> bytes:
        return await self._host.call(method, packed_args)


class RayCluster:
    """See `protocol.Cluster`. Made by `attach`, or in a worker of Ray."""

    def __init__(self, namespace: str, own_connection: bool = False) -> None:
        self._namespace = namespace
        self._own_connection = own_connection
        self._head = ray.get_runtime_context().gcs_address
        self._handles: dict[str, Any] = {}

    # -- nodes and members ---------------------------------------------------------------------------------------

    def nodes(self) -> list[NodeInfo]:
        leaving = self._ask(_leaving_nodes)
        return [_node_info(node, leaving) for node in self._ask(ray.nodes)]

    def reaches(self, node: NodeInfo) -> bool:
        try:
            probe(f"{node.address}:{node.port}")
        except ClusterError:
            return False
        return True

    def create(self, spec: MemberSpec) -> None:
        deadline_s = time.monotonic() + spec.create_timeout_s
        if self.exists(spec.name):
            raise ClusterError(f"there is a member {spec.name!r} in {self._namespace} already: end it first")
        # Only what a worker can unpickle without this process's modules goes in: the spec, as plain values.
        plain = replace(spec, kwargs=dict(spec.kwargs), env=dict(spec.env))
        actor = ray.remote(MemberActor).options(**_options(plain, self._namespace)).remote(plain, self._namespace)
        try:
            packed = _wait(actor.built.remote(), deadline_s)
        except (TimeoutError, ray_errors.ActorUnschedulableError) as error:
            self._give_up(actor)
            raise ClusterError(self._why_not_placed(spec)) from error
        except ray_errors.RayError as error:
            self._give_up(actor)
            raise StartError(f"{spec.name} died: {first_lines(error)}", spec.log, log_tail(spec.log)) from error
        try:
            unpack(packed)
        except Exception as error:
            self._give_up(actor)
            raise StartError(f"{spec.name} could not be made: {error}", spec.log, log_tail(spec.log)) from error
        self._handles[spec.name] = actor

    def exists(self, name: str) -> bool:
        return name in self.list()

    def list(self) -> list[str]:
        found = self._ask(lambda: ray.util.list_named_actors(all_namespaces=True))
        return sorted(actor["name"] for actor in found if actor["namespace"] == self._namespace)

    def kill(self, name: str) -> None:
        deadline_s = time.monotonic() + KILL_TIMEOUT_S
        try:
            actor = self._look_up(name)
        except PeerLost:
            return
        self._handles.pop(name, None)
        self._ask(lambda: ray.kill(actor, no_restart=True))
        while self.exists(name):
            if time.monotonic() > deadline_s:
                raise ClusterError(f"{name} is still there {KILL_TIMEOUT_S:g} s after it was ended: is its node alive?")
            time.sleep(POLL_S)

    def close(self) -> None:
        if self._own_connection:
            self._own_connection = False
            ray.shutdown()

    # -- calls ---------------------------------------------------------------------------------------------------

    def call(self, name: str, method: str, *args: Any, timeout_s: float) -> Any:
        deadline_s = time.monotonic() + timeout_s
        reference = self._send(name, method, args)
        try:
            packed = _wait(reference, deadline_s)
        except TimeoutError as error:
            ray.cancel(reference, force=False, recursive=False)
            raise PeerTimeout(f"{name} did not answer {method} within {timeout_s:g} s") from error
        except ray_errors.RayError as error:
            raise self._lost(name, method, error) from error
        return unpack(packed)

    async def acall(self, name: str, method: str, *args: Any, timeout_s: float) -> Any:
        deadline_s = time.monotonic() + timeout_s
        if name not in self._handles:
            await asyncio.to_thread(self._handle, name)
        reference = self._send(name, method, args)
        try:
            packed = await asyncio.wait_for(_as_future(reference), max(0.0, deadline_s - time.monotonic()))
        except TimeoutError as error:
            ray.cancel(reference, force=False, recursive=False)
            raise PeerTimeout(f"{name} did not answer {method} within {timeout_s:g} s") from error
        except asyncio.CancelledError:
            ray.cancel(reference, force=False, recursive=False)
            raise
        except ray_errors.RayError as error:
            raise self._lost(name, method, error) from error
        return unpack(packed)

    # -- inside --------------------------------------------------------------------------------------------------

    def _send(self, name: str, method: str, args: tuple[Any, ...]) -> Any:
        return self._handle(name).call.remote(method, pack_args(args))

    def _handle(self, name: str) -> Any:
        handle = self._handles.get(name)
        if handle is None:
            handle = self._handles[name] = self._look_up(name)
        return handle

    def _look_up(self, name: str) -> Any:
        try:
            return self._ask(lambda: ray.get_actor(name, namespace=self._namespace))
        except ValueError as error:
            raise PeerLost(f"there is no member {name!r} in {self._namespace}") from error

    def _lost(self, name: str, method: str, error: Exception) -> PeerLost:
        if not isinstance(error, ray_errors.ActorUnavailableError):
            self._handles.pop(name, None)
        if isinstance(error, ray_errors.ActorDiedError):
            return PeerLost(f"the process of {name} ended, seen during {method}")
        return PeerLost(f"{name} was lost during {method}: {first_lines(error)}")

    def _ask(self, question: Callable[[], T]) -> T:
        """Ask the head something, with a deadline that Ray itself does not have. Raises ClusterError."""
        probe(self._head)
        return bounded(question, ASK_TIMEOUT_S, f"the Ray head at {self._head} did not answer")

    def _give_up(self, actor: Any) -> None:
        self._ask(lambda: ray.kill(actor, no_restart=True))

    def _why_not_placed(self, spec: MemberSpec) -> str:
        nodes = "; ".join(
            f"{node.address} (id {node.id[:12]}, {node.num_gpus:g} GPUs{'' if node.alive else ', dead'})"
            for node in self.nodes()
        )
        return (
            f"{spec.name} did not come up within {spec.create_timeout_s:g} s: it needs {spec.num_gpus:g} GPUs on "
            f"{'node ' + spec.node_id[:12] if spec.node_id else 'any node'}; the cluster has {nodes}. Free GPUs, or "
            f"see Ray's own logs"
        )


def attach(address: str, namespace: str) -> RayCluster:
    """Connect this process to the cluster at ``address``; called by `connect.connect`, which sets Ray's environment.

    Raises ClusterError.
    """
    if address != "auto":
        probe(address)
    try:
        ray.init(
            address=address,
            namespace=namespace,
            log_to_driver=False,
            logging_level=logging.ERROR,
            configure_logging=False,
        )
    except (ConnectionError, RuntimeError, ValueError, ray_errors.RayError) as error:
        raise ClusterError(
            f"cannot connect to the Ray cluster at {address}: {first_lines(error)}: "
            f"is it Ray {ray.__version__}, and the token its own?"
        ) from error
    return RayCluster(namespace, own_connection=True)


def start_head(temp_dir: str, num_cpus: int, object_store_bytes: int) -> str:
    """Start a Ray head whose processes live as long as this one. Returns its address; `stop_head` ends it."""
    context = ray.init(
        address="local",
        num_cpus=num_cpus,
        num_gpus=None,
        include_dashboard=False,
        object_store_memory=object_store_bytes,
        log_to_driver=False,
        logging_level=logging.WARNING,
        _temp_dir=temp_dir,
    )
    return str(context.address_info["gcs_address"])


def stop_head() -> None:
    """End the head that this process started, and wait for its processes."""
    ray.shutdown()


def _wait(reference: Any, deadline_s: float) -> bytes:
    # Not ray.get: called from a member's thread, it warns into the member's log of an event loop that it is not in.
    packed: bytes = reference.future().result(max(0.0, deadline_s - time.monotonic()))
    return packed


async def _as_future(reference: Any) -> bytes:
    packed: bytes = await reference
    return packed


def _options(spec: MemberSpec, namespace: str) -> dict[str, Any]:
    options: dict[str, Any] = {
        "name": spec.name,
        "namespace": namespace,
        "lifetime": "detached",
        "num_cpus": 0,
        "num_gpus": spec.num_gpus,
        "max_restarts": spec.max_restarts,
        "max_task_retries": 0,
        "max_concurrency": MAX_CALLS,
    }
    if spec.env:
        options["runtime_env"] = {"env_vars": dict(spec.env)}
    if spec.node_id is not None:
        options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(node_id=spec.node_id, soft=False)
    return options


def _leaving_nodes() -> dict[str, int]:
    """Node id -> when it may go (Unix milliseconds, 0 for unknown), as `ray drain-node` and the autoscaler say.

    Ray has no public call for it; its own training library uses this one.
    """
    leaving: dict[str, int] = ray._private.state.state.get_draining_nodes()
    return leaving


def _node_info(node: Mapping[str, Any], leaving: Mapping[str, int]) -> NodeInfo:
    resources = node.get("Resources", {})
    return NodeInfo(
        id=node["NodeID"],
        address=node["NodeManagerAddress"],
        num_cpus=float(resources.get("CPU", 0.0)),
        num_gpus=float(resources.get("GPU", 0.0)),
        labels=dict(node.get("Labels", {})),
        alive=bool(node["Alive"]),
        port=int(node.get("NodeManagerPort", 0)),
        is_head=HEAD_RESOURCE in resources,
        is_leaving=node["NodeID"] in leaving,
        leaves_at_s=leaving.get(node["NodeID"], 0) / 1000,
    )
