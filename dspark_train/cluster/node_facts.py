"""What is known of a node, as plain values: what `collect` finds on it, and what the rules judge.

Rules are pure functions over these, so that a machine of any kind can be judged in a test by made-up facts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Interface:
    """A network interface that is up. speed_bits_per_s: as the kernel says; None where it does not know."""

    address: str
    mtu_bytes: int = 1500
    speed_bits_per_s: float | None = None


@dataclass(frozen=True, slots=True)
class Gpus:
    """The GPUs of a node. Without any: all empty.

    cuda: the newest that the driver serves. nvlink_domain: "cluster-uuid.clique" of a rack whose nodes share NVLink, ""
    elsewhere. fabric: state of its registration there, such as Completed. num_imex_channels: devices through which
    memory is exported to other nodes. imex: what the IMEX daemon says, such as READY; "" where there is none.
    """

    names: tuple[str, ...] = ()
    driver: str = ""
    cuda: str = ""
    nvlink_domain: str = ""
    fabric: str = ""
    num_imex_channels: int = 0
    imex: str = ""


@dataclass(frozen=True, slots=True)
class Numa:
    """Memory and cores. cores: NUMA node -> cores of it that this process may use; those without any are not here.

    num_memory_only: NUMA nodes without cores, such as GPU memory that the kernel sees. balancing: whether the kernel
    moves pages by itself.
    """

    cores: Mapping[int, int] = field(default_factory=dict)
    num_cores_elsewhere: int = 0
    num_memory_only: int = 0
    balancing: bool = False


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """A node as it was found.

    versions: distribution -> version, "" where it is missing. wheels: distribution -> platform that it was built for,
    such as aarch64. rdma: device -> state of its first port. memlock_bytes: None is unlimited. hub: off, on, no answer,
    or not asked. target: of its files. sees_runs: whether it sees the file that was put into the runs' directory; None
    where nobody asked.
    """

    address: str
    hostname: str = ""
    machine: str = "x86_64"
    page_bytes: int = 4096
    versions: Mapping[str, str] = field(default_factory=dict)
    wheels: Mapping[str, str] = field(default_factory=dict)
    interfaces: Mapping[str, Interface] = field(default_factory=dict)
    gpus: Gpus = field(default_factory=Gpus)
    numa: Numa = field(default_factory=Numa)
    rdma: Mapping[str, str] = field(default_factory=dict)
    num_open_files: int = 65536
    memlock_bytes: int | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    hub: str = "not asked"
    target: str = ""
    sees_runs: bool | None = None

    def interface(self) -> str:
        """Name of the interface with the node's address; "" where none has it."""
        return next((name for name, own in self.interfaces.items() if own.address == self.address), "")


@dataclass(frozen=True, slots=True)
class Link:
    """What went from one node to another. bytes_per_s: None where nothing arrived, with the reason in ``problem``."""

    source: str
    to: str
    bytes_per_s: float | None
    problem: str = ""
