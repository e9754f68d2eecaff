"""What a run asks of the cluster it runs on. `on_ray.py` is the real one, `fake.py` the shipped fake.

A *member* is a plain object in a process of its own, reached by name. Its class knows nothing of this module: sync
methods may block (each call gets a thread), async ones run in the member's event loop.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from dspark_train.peers import Peers


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """A node of the cluster.

    address: reachable from the other nodes (127.0.0.1 on a local one). alive: as the cluster believes, which may notice
    a cut link only after a minute. port: at which the cluster's own process there listens, 0 where there is none.
    is_head: with it the cluster itself would be lost. is_leaving: somebody has asked the cluster to drain it; it may go
    at leaves_at_s (Unix seconds; 0 where nobody said when).
    """

    id: str
    address: str
    num_cpus: float = 0.0
    num_gpus: float = 0.0
    labels: Mapping[str, str] = field(default_factory=dict)
    alive: bool = True
    port: int = 0
    is_head: bool = False
    is_leaving: bool = False
    leaves_at_s: float = 0.0


@dataclass(frozen=True, slots=True)
class MemberSpec:
    """A member to be made.

    factory: "package.module:Class", called as ``Class(**kwargs, peers=cluster)`` in the member's process, in a thread
    without an event loop; quick, since `create` waits for it. kwargs: picklable. node_id: the node it must be on; None
    lets the cluster choose. num_gpus: GPUs set aside for it and visible to it. env: of its process, there before the
    first import. max_restarts: how often a crashed member is made anew, empty; -1 for ever. log: file that its output
    is appended to ("" leaves it where the cluster puts it). create_timeout_s: until it answers. fence_s: a member that
    nobody has called for so long is cut off, or its run is dead: it stops itself, and its process ends; 0 for never.
    log_max_bytes: at which the log is rotated, 0 for never; log_keep: older ones that are kept.
    """

    name: str
    factory: str
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    node_id: str | None = None
    num_gpus: float = 0.0
    env: Mapping[str, str] = field(default_factory=dict)
    max_restarts: int = 0
    log: str = ""
    create_timeout_s: float = 120.0
    fence_s: float = 0.0
    log_max_bytes: int = 0
    log_keep: int = 1


class Cluster(Peers, Protocol):
    """The members of one run (a namespace) and the nodes they can be on. Thread-safe.

    ``call`` and ``acall`` raise what the method raised, as itself where it can be pickled, else as a DSparkError with
    its text; its traceback is in the exception's notes. A call given up by PeerTimeout is cancelled where it is async;
    a sync one runs on unseen.
    """

    def nodes(self) -> list[NodeInfo]:
        """All nodes, dead ones included. Raises ClusterError if the cluster does not answer."""
        ...

    def reaches(self, node: NodeInfo) -> bool:
        """Whether the node answers from here, now. Never raises."""
        ...

    def create(self, spec: MemberSpec) -> None:
        """Make a member, and wait until its object is built; it outlives the process that asked for it.

        Raises StartError if its class fails, with the log's last lines; ClusterError if the name is taken or no node
        has room. Nothing of it is left then.
        """
        ...

    def exists(self, name: str) -> bool:
        """Whether there is a member of that name, answering or not. Raises ClusterError."""
        ...

    def list(self) -> list[str]:
        """Names of all members of the run, sorted, whoever made them. Raises ClusterError."""
        ...

    def kill(self, name: str) -> None:
        """End the member's process at once and for good; none of that name is no error. Raises ClusterError."""
        ...

    def close(self) -> None:
        """Leave the cluster; its members stay. Twice is fine."""
        ...
