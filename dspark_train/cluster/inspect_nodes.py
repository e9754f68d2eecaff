"""Looks at every node of a cluster at the same time: puts an inspector on each, asks, measures, ends them all."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from dspark_train.cluster.checks import Finding, Need, worst_first
from dspark_train.cluster.fleet_rules import Fleet, judge, merge
from dspark_train.cluster.node_facts import Link, NodeFacts
from dspark_train.cluster.protocol import Cluster, MemberSpec, NodeInfo
from dspark_train.errors import DSparkError

FACTORY = "dspark_train.cluster.inspector:Inspector"
START_TIMEOUT_S = 180.0
QUICK_TIMEOUT_S, FULL_TIMEOUT_S = 120.0, 300.0
"""Loading torch and vLLM takes seconds on a quiet machine, and a minute on a busy one."""
FENCE_S = 600.0
LINK_BYTES, LINK_S = 256 << 20, 0.5
"""One measurement: so much or so long, whichever is less."""
MAX_ROUNDS = 3
"""Each round takes a second or two; in three of them a slow node shows itself, however many there are."""
T = TypeVar("T")


def inspect_nodes(cluster: Cluster, need: Need, *, loads: bool, rates: bool) -> tuple[list[Finding], Fleet]:
    """Findings about all nodes, worst first, and what they are based on.

    loads: whether torch and vLLM are loaded on each; rates: whether nodes send to each other. Raises ClusterError if
    the cluster does not answer.
    """
    nodes = sorted((node for node in cluster.nodes() if node.alive), key=lambda node: node.address)
    names = _names(nodes)
    with _mark(need.runs_dir) as mark, ThreadPoolExecutor(max_workers=max(1, len(nodes))) as pool:
        inspection = _Inspection(cluster, need, mark, pool, loads, rates)
        try:
            fleet, findings = inspection.look(dict(zip(names, nodes, strict=True)))
        finally:
            inspection.end()
    findings += judge(fleet, need)
    return worst_first(merge(findings, len(nodes))), fleet


class _Inspection:
    """One look. Members are named after this look, so that two of them do not meet."""

    def __init__(
        self, cluster: Cluster, need: Need, mark: str, pool: ThreadPoolExecutor, loads: bool, rates: bool
    ) -> None:
        self._cluster, self._need, self._mark, self._pool = cluster, need, mark, pool
        self._loads, self._rates = loads, rates
        self._look = secrets.token_hex(4)
        self._made: list[str] = []
        self._silent: dict[str, str] = {}

    def look(self, nodes: dict[str, NodeInfo]) -> tuple[Fleet, list[Finding]]:
        self._each(list(nodes), lambda name: self._make(name, nodes[name]))
        skews = self._each(self._answering(nodes), self._skew)
        timeout_s = FULL_TIMEOUT_S if self._loads else QUICK_TIMEOUT_S
        looks: dict[str, tuple[NodeFacts, list[Finding]]] = self._each(
            self._answering(nodes), lambda name: self._call(name, "look", self._mark, self._loads, timeout_s=timeout_s)
        )
        links = self._links({name: nodes[name].address for name in self._answering(nodes)}) if self._rates else []
        facts = {name: found for name, (found, _) in looks.items()}
        findings = [replace(finding, node=name) for name, (_, own) in looks.items() for finding in own]
        return Fleet(facts, skews, links, self._silent), findings

    def end(self) -> None:
        """End every inspector."""

        def kill(name: str) -> None:
            with suppress(DSparkError):  # its node is gone: the fence ends it
                self._cluster.kill(name)

        list(self._pool.map(kill, self._made))

    def _make(self, name: str, node: NodeInfo) -> None:
        spec = MemberSpec(
            name=self._member(name),
            factory=FACTORY,
            kwargs={"need": self._need, "address": node.address},
            node_id=node.id,
            create_timeout_s=START_TIMEOUT_S,
            fence_s=FENCE_S,
        )
        self._made.append(spec.name)
        self._cluster.create(spec)

    def _skew(self, name: str) -> tuple[float, float]:
        """The clock of a node minus this one's, and how far off that may be: the quickest of three calls."""
        tries = []
        for _ in range(3):
            before_s = time.time()
            there_s = float(self._call(name, "now_s", timeout_s=QUICK_TIMEOUT_S))
            after_s = time.time()
            tries.append(((after_s - before_s) / 2, there_s - (before_s + after_s) / 2))
        error_s, skew_s = min(tries)
        return skew_s, error_s

    def _links(self, addresses: dict[str, str]) -> list[Link]:
        names = list(addresses)
        links: list[Link] = []
        for pairs in rounds(len(names)):
            links += self._pool.map(lambda pair: self._link(names[pair[0]], names[pair[1]], addresses), pairs)
        return links

    def _link(self, source: str, to: str, addresses: dict[str, str]) -> Link:
        try:
            port = self._call(to, "listen", 10 * LINK_S + 5, timeout_s=QUICK_TIMEOUT_S)
            rate = self._call(source, "send", addresses[to], port, LINK_BYTES, LINK_S, timeout_s=QUICK_TIMEOUT_S)
        except (DSparkError, OSError) as error:
            return Link(source, to, None, str(error))
        return Link(source, to, float(rate))

    def _answering(self, nodes: dict[str, NodeInfo]) -> list[str]:
        return [name for name in nodes if name not in self._silent]

    def _each(self, names: Sequence[str], ask: Callable[[str], T]) -> dict[str, T]:
        """Ask all nodes at the same time; those that fail are silent from then on."""
        answers = {}
        for name, answer in zip(names, self._pool.map(lambda name: _try(ask, name), names), strict=True):
            if isinstance(answer, DSparkError):
                self._silent[name] = str(answer)
            else:
                answers[name] = answer
        return answers

    def _member(self, name: str) -> str:
        return f"inspector-{self._look}-{name}"

    def _call(self, name: str, method: str, *args: object, timeout_s: float) -> Any:
        return self._cluster.call(self._member(name), method, *args, timeout_s=timeout_s)


def rounds(num_nodes: int) -> list[list[tuple[int, int]]]:
    """Who sends to whom, round by round: in each, every node sends once and receives once.

    Round r sends to the r-th next node. All pairs where there are few nodes, else the first `MAX_ROUNDS`.
    """
    shifts = range(1, min(num_nodes, MAX_ROUNDS + 1))
    return [[(place, (place + shift) % num_nodes) for place in range(num_nodes)] for shift in shifts]


def _names(nodes: Sequence[NodeInfo]) -> list[str]:
    """Addresses, with a part of the id where nodes share one."""
    shared = [node.address for node in nodes]
    return [f"{node.address}/{node.id[:6]}" if shared.count(node.address) > 1 else node.address for node in nodes]


def _try(ask: Callable[[str], T], name: str) -> T | DSparkError:
    try:
        return ask(name)
    except DSparkError as error:
        return error


@contextmanager
def _mark(runs_dir: Path) -> Iterator[str]:
    """A file in the runs' directory, for others to look for; "" where that cannot be written."""
    mark = runs_dir.absolute() / f".doctor-{secrets.token_hex(8)}"
    try:
        runs_dir.mkdir(parents=True, exist_ok=True)
        mark.touch()
    except OSError:
        yield ""  # the check of the disk says why
        return
    try:
        yield str(mark)
    finally:
        mark.unlink(missing_ok=True)
