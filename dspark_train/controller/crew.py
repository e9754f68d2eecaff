"""The members of a run as the controller handles them: made from the plan's processes, started, asked, ended.

Owns the mapping from a planned process to an actor on a node. Decides nothing.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from typing import Any, TypeVar

from dspark_train.cluster.protocol import Cluster, MemberSpec, NodeInfo
from dspark_train.errors import DSparkError, PeerError, PeerLost, PeerTimeout, StartError
from dspark_train.plan.run_layout import RunLayout
from dspark_train.plan.spec import ProcessSpec

T = TypeVar("T")

FACTORIES: Mapping[str, str] = {
    "controller": "dspark_train.controller.controller:Controller",
    "ledger": "dspark_train.controller.ledger_service:LedgerService",
    "master": "dspark_train.store.master:Master",
    "engine": "dspark_train.engine.engine:Engine",
    "rank": "dspark_train.trainer.rank:Rank",
}
ASK_TIMEOUT_S = 5.0
"""One look at a member's status."""
AWAKE_S = 5.0
"""How often members are asked while the run starts."""
ORDER_TIMEOUT_S = 15.0
"""One order to a member that is up, given while everything else waits for the answer."""
CREATE_TIMEOUT_S = 60.0
"""From asking for an actor to its first answer: one Python start with our imports."""

STOP_GRACE_S = 10.0
"""What a member's child gets between the polite and the final signal."""


class Crew:
    """Starts, asks and ends the members of one run."""

    def __init__(
        self,
        cluster: Cluster,
        layout: RunLayout,
        nodes: Mapping[str, NodeInfo],
        factories: Mapping[str, str],
        fence_s: float = 0.0,
        log_max_bytes: int = 0,
        log_keep: int = 1,
    ) -> None:
        """factories: kind of process -> "module:Class" of its member. The rest: see `MemberSpec`."""
        self._fence_s, self._log_max_bytes, self._log_keep = fence_s, log_max_bytes, log_keep
        self._cluster, self._factories = cluster, factories
        self._layout = layout
        self.nodes = dict(nodes)
        self.ports: dict[str, int] = {}
        self._pool = ThreadPoolExecutor(max_workers=64, thread_name_prefix="crew")

    @property
    def hosts(self) -> dict[str, str]:
        """Planned node -> address."""
        return {name: node.address for name, node in self.nodes.items()}

    def cluster_nodes(self) -> list[NodeInfo]:
        """All nodes of the cluster, dead ones included. Raises ClusterError."""
        return self._cluster.nodes()

    def usable_nodes(self) -> list[NodeInfo]:
        """The cluster's nodes that answer from here now, and are to stay. Raises ClusterError."""
        living = [node for node in self._cluster.nodes() if node.alive and not node.is_leaving]
        if not living:
            return []
        with ThreadPoolExecutor(max_workers=len(living), thread_name_prefix="reach") as pool:
            answers = list(pool.map(self._cluster.reaches, living))
        return [node for node, answers_now in zip(living, answers, strict=True) if answers_now]

    def create(self, spec: ProcessSpec, **kwargs: Any) -> None:
        """Make the member on its node. Raises StartError."""
        node = self.nodes[spec.node]
        env = {key: value for key, value in spec.env.items() if spec.argv[:1] == ("actor",)}
        self._cluster.create(
            MemberSpec(
                name=spec.name,
                factory=self._factory(spec),
                kwargs={"run_dir": str(self._layout.root), **kwargs},
                node_id=node.id,
                num_gpus=spec.num_gpus,
                env=env,
                log=str(self._layout.log(spec.name)),
                fence_s=self._fence_s,
                log_max_bytes=self._log_max_bytes,
                log_keep=self._log_keep,
            )
        )

    def _factory(self, spec: ProcessSpec) -> str:
        """What the plan names, where no other is given for the kind: a store or an engine may be of several classes."""
        given = self._factories[spec.kind]
        return spec.argv[1] if spec.argv[:1] == ("actor",) and given == FACTORIES[spec.kind] else given

    def reserve_ports(self, spec: ProcessSpec, wanted: Mapping[str, int] | None = None) -> None:
        """Have the member reserve its ports on its own host, and remember them. wanted: the numbers they must have."""
        if spec.ports:
            args = (dict(wanted),) if wanted else ()
            reserved = self.call(spec.name, "reserve_ports", *args, timeout_s=CREATE_TIMEOUT_S)
            self.ports.update({f"{spec.name}.{port}": number for port, number in reserved.items()})

    def start(self, name: str, timeout_s: float) -> dict[str, Any]:
        """Start the member and wait until it is up. Raises StartError, with the cause."""
        try:
            answer = self.call(name, "start", self.hosts, self.ports, timeout_s=timeout_s)
        except PeerError as error:
            raise StartError(f"{name} did not start: {error}", str(self._layout.log(name))) from error
        return dict(answer or {})

    def call(self, name: str, method: str, *args: Any, timeout_s: float) -> Any:
        """Call a member; see `Peers.call`."""
        return self._cluster.call(name, method, *args, timeout_s=timeout_s)

    def ask_all(self, names: Iterable[str]) -> dict[str, dict[str, Any] | None]:
        """The status of each member, side by side; None for one that does not answer in time, "dead" for one gone."""
        names = list(names)
        futures = {name: self._pool.submit(self._ask, name) for name in names}
        return {name: future.result() for name, future in futures.items()}

    def _ask(self, name: str) -> dict[str, Any] | None:
        try:
            return dict(self.call(name, "status", timeout_s=ASK_TIMEOUT_S))
        except PeerTimeout:
            return None
        except PeerError as error:
            return {"state": "dead", "error": str(error)}

    @contextlib.contextmanager
    def kept_awake(self, names: Sequence[str]) -> Iterator[None]:
        """Ask after these members meanwhile: who has started, and waits for others, must not think itself cut off."""
        over = threading.Event()

        def ask() -> None:
            while not over.wait(AWAKE_S):
                self.ask_all(names)

        asking = threading.Thread(target=ask, name="keep awake", daemon=True)
        asking.start()
        try:
            yield
        finally:
            over.set()
            asking.join(2 * ASK_TIMEOUT_S)

    def begin(self, task: Callable[[], T]) -> Future[T]:
        """Run a task in a thread of its own; look at what comes of it later."""
        return self._pool.submit(task)

    def names(self) -> list[str]:
        """Every member there is, whoever made it. Raises ClusterError."""
        return self._cluster.list()

    def kill(self, names: Sequence[str]) -> list[str]:
        """End members at once, side by side. Returns what went wrong, a line each; never raises."""
        futures = [self._pool.submit(self._kill, name, "") for name in names]
        return [text for future in futures if (text := future.result())]

    def side_by_side(self, tasks: Sequence[Callable[[], Any]]) -> list[Any]:
        """Run the tasks at once; the first failure is raised at once, without waiting for the others."""
        futures: list[Future[Any]] = [self._pool.submit(task) for task in tasks]
        done, _ = wait(futures, return_when=FIRST_EXCEPTION)
        for future in done:
            if (error := future.exception()) is not None:
                raise error
        return [future.result() for future in futures]

    def end(self, names: Sequence[str], grace_s: float = STOP_GRACE_S) -> list[str]:
        """Stop and remove members, side by side. Returns what went wrong, a line each; never raises."""
        futures = {name: self._pool.submit(self._end, name, grace_s) for name in names}
        return [text for future in futures.values() if (text := future.result())]

    def _end(self, name: str, grace_s: float) -> str:
        text = ""
        try:
            self.call(name, "stop", grace_s, timeout_s=grace_s + ASK_TIMEOUT_S)
        except PeerLost:
            pass  # it is gone already
        except DSparkError as error:
            text = f"{name} did not stop by itself: {error}"
        return self._kill(name, text)

    def _kill(self, name: str, text: str) -> str:
        try:
            self._cluster.kill(name)
        except DSparkError as error:
            return f"{name} could not be ended: {error}"
        return text

    def end_all(self, last: Sequence[str], grace_s: float = STOP_GRACE_S) -> list[str]:
        """Stop and remove every member but the controller; those of ``last`` after all others, in this order.

        Returns what went wrong, a line each; never raises.
        """
        try:
            names = [name for name in self._cluster.list() if name != "controller"]
        except DSparkError as error:
            return [f"the members left could not be listed: {error}"]
        problems = self.end([name for name in names if name not in last], grace_s)
        for name in last:
            problems += self.end([name] if name in names else [], grace_s)
        return problems
