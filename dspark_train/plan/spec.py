"""What a plan is made of. Pure data; `launch` starts exactly these processes.

``argv`` and ``env`` may hold placeholders, filled in on the host where the process starts, since only there an address
or a free port is known: ``{host:NODE}`` the address of a planned node, ``{port:PROCESS.NAME}`` a reserved port of a
process, ``{interface}`` the network interface of the process's own node, ``{run}`` the run's name, ``{log}`` the
process's log file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

from pydantic import BaseModel, ConfigDict

Kind = Literal["controller", "ledger", "master", "engine", "rank"]
Bottleneck = Literal["inference", "trainers", "link"]
_PLACEHOLDER = re.compile(r"\{(host|port):([^{}]+)\}|\{(run|log|interface)\}")

UNRESOLVED = "UNRESOLVED"
"""Stands in an argv for what is not known yet; `Plan.unresolved` says what. Launch refuses it."""


class Frozen(BaseModel):
    """Base of the plan's records."""

    model_config = ConfigDict(frozen=True)


class PlannedNode(Frozen):
    """A node that the plan needs. ``address`` is None until the node is matched with a real one.

    domain: the same for nodes that one engine may span, "" for others. They are to be in one NVLink domain.
    """

    name: str
    role: Literal["head", "shared", "inference", "training"]
    set_index: int
    num_gpus: int
    address: str | None = None
    domain: str = ""


class ProcessSpec(Frozen):
    """One process of the run.

    argv: of the child (master, engine), or ``["actor", "module:Class"]`` where the Ray actor itself does the work.
    ports: names of the ports to reserve on its node; the number is None until reserved.
    """

    name: str
    kind: Kind
    node: str
    argv: tuple[str, ...]
    env: dict[str, str]
    ports: dict[str, int | None]
    num_gpus: int
    num_cpus: float = 0.0


class Capacity(Frozen):
    """Bytes and bandwidth, by arithmetic; None where a figure of the target is unknown."""

    bytes_per_token: int | None
    step_bytes: int | None
    in_flight_bytes: int | None
    """What all engines may have in flight at once."""
    store_bytes: int
    store_needed_bytes: int | None
    """Two steps plus what is in flight, over the high mark: less is refused."""
    link_bytes_per_s_needed: float | None
    """Hidden states a second at the predicted throughput; None without a measurement."""
    target_weight_bytes: int | None
    draft_state_bytes: int | None
    ring_bytes: int | None
    """Pack buffers of one rank."""
    staging_bytes: int | None = None
    """Host memory of one engine in which its writer threads hold the samples that they put, at most."""
    segment_bytes: int = 0
    """What each rank gives to the store."""
    segment_needed_bytes: int | None = None
    """The smallest segment that holds its share of what is needed."""


class Predicted(Frozen):
    """Throughput of the split that the run starts with, from a measured profile; None without one."""

    tokens_per_s: float | None = None
    bottleneck: Bottleneck | None = None
    """None as well where the pools match to a percent."""


class PredictedSplit(Frozen):
    """What other sizes of the pools would give."""

    inference: int
    trainers: int
    tokens_per_s: float
    bottleneck: Bottleneck | None


class BestSplit(Frozen):
    """The best legal split, and the best that differs from it: None where only one is legal."""

    first: PredictedSplit
    second: PredictedSplit | None
    lead_frac: float
    """By how much the second is worse."""


class Measured(Frozen):
    """The rates that a prediction is made of, in tokens a second, and where they are from."""

    file: str
    at: str
    by: str
    on: str
    engine_tokens_per_s: float
    rank_tokens_per_s: float
    rank_packs: int
    """Packs of a step that the rank had when it was measured."""
    link_bytes_per_s: float | None


class Plan(Frozen):
    """Everything that `launch` will start, and the arithmetic behind it."""

    topology: str
    nodes: tuple[PlannedNode, ...]
    processes: tuple[ProcessSpec, ...]
    capacity: Capacity
    predicted: Predicted
    warnings: tuple[str, ...]
    unresolved: tuple[str, ...] = ()
    """What launch must know first; each is a sentence."""
    best: BestSplit | None = None
    measured: Measured | None = None

    def process(self, name: str) -> ProcessSpec:
        """The process of that name. Raises KeyError."""
        return next(p for p in self.processes if p.name == name)


class Unbound(KeyError):
    """A placeholder has no value yet."""


def bind(
    text: str, *, hosts: Mapping[str, str], ports: Mapping[str, int], run: str, log: str, interface: str = ""
) -> str:
    """Fill the placeholders of ``text``. hosts: planned node -> address; ports: "process.name" -> number.

    Raises Unbound naming the placeholder that has no value.
    """
    plain_values = {"run": run, "log": log, "interface": interface}

    def fill(match: re.Match[str]) -> str:
        kind, name, plain = match.groups()
        if plain and plain_values[plain]:
            return plain_values[plain]
        table: Mapping[str, object] = hosts if kind == "host" else ports
        if name not in table:
            raise Unbound(match.group(0))
        return str(table[name])

    return _PLACEHOLDER.sub(fill, text)


def bind_process(
    spec: ProcessSpec,
    *,
    hosts: Mapping[str, str],
    ports: Mapping[str, int],
    run: str,
    log: str,
    interface: str = "",
) -> ProcessSpec:
    """``spec`` with every placeholder filled and its ports numbered. Raises Unbound."""

    def fill(text: str) -> str:
        return bind(text, hosts=hosts, ports=ports, run=run, log=log, interface=interface)

    argv = tuple(fill(argument) for argument in spec.argv)
    env = {name: fill(value) for name, value in spec.env.items()}
    numbered = {name: ports.get(f"{spec.name}.{name}") for name in spec.ports}
    return spec.model_copy(update={"argv": argv, "env": env, "ports": numbered})
