"""What must hold between the nodes of a cluster: same software, same clock, a way from each to each. Pure.

Each rule gives findings that name the nodes they are about.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from dspark_train.cluster.checks import Finding, Need, Status
from dspark_train.cluster.node_facts import Link, NodeFacts

SKEW_WARNING_S, SKEW_FAILED_S = 1.0, 30.0
"""Nothing in a run compares clocks of two nodes, but people compare logs, and tokens and certificates expire."""
SLOW_FRAC = 0.5
"""A link at less than this part of the median is worth a look."""
ALL = "all nodes"


@dataclass(frozen=True, slots=True)
class Fleet:
    """Every node that answered, and what was measured between them.

    skew_s: node -> its clock minus this one's, and how far off that may be. silent: node -> why it did not answer.
    """

    facts: Mapping[str, NodeFacts]
    skew_s: Mapping[str, tuple[float, float]]
    links: Sequence[Link] = ()
    silent: Mapping[str, str] | None = None


def judge(fleet: Fleet, need: Need) -> Iterator[Finding]:
    """The findings of all rules."""
    for rule in RULES:
        yield from rule(fleet, need)


def silent(fleet: Fleet, need: Need) -> Iterator[Finding]:
    """A node on which no process can be started, or whose process does not answer."""
    remedy = "see that node's Ray logs; is the same version of dspark-train installed there?"
    for node, why in (fleet.silent or {}).items():
        yield Finding("answers", "failed", why, remedy, node)


def enough(fleet: Fleet, need: Need) -> Iterator[Finding]:
    """There are as many nodes as the topology describes."""
    num = len(fleet.facts)
    short = num < need.num_nodes
    text = f"{num} nodes answer; the topology needs {need.num_nodes}"
    yield Finding(
        "nodes", "failed" if short else "ok", text, "add nodes, or choose a smaller topology" if short else ""
    )


def versions(fleet: Fleet, need: Need) -> Iterator[Finding]:
    """The same software everywhere: what was pickled by one version is read by another, or not."""
    names = sorted({name for facts in fleet.facts.values() for name in facts.versions})
    num_equal = 0
    for name in names:
        found = {node: facts.versions.get(name, "") or "missing" for node, facts in fleet.facts.items()}
        num_equal += len(set(found.values())) == 1
        yield from _odd_ones("versions", name, found, "install the same everywhere: make setup, or one image")
    if num_equal == len(names):
        yield Finding("versions", "ok", f"{num_equal} packages are the same everywhere", "", ALL)


def alike(fleet: Fleet, need: Need) -> Iterator[Finding]:
    """What else has to be the same: the machine's kind, its pages, driver, GPUs, the environment, the model's files."""
    traits: dict[str, Callable[[NodeFacts], str]] = {
        "machine": lambda facts: facts.machine,
        "page size": lambda facts: f"{facts.page_bytes // 1024} KiB",
        "GPU driver": lambda facts: facts.gpus.driver or "none",
        "CUDA": lambda facts: facts.gpus.cuda or "none",
        "locked memory": lambda facts: "any" if facts.memlock_bytes is None else f"{facts.memlock_bytes // 1024} KiB",
        "target files": lambda facts: facts.target or "none",
        "NCCL_MNNVL_ENABLE": lambda facts: facts.env.get("NCCL_MNNVL_ENABLE", "not set"),
    }
    for name, trait in traits.items():
        found = {node: trait(facts) for node, facts in fleet.facts.items()}
        yield from _odd_ones(name, name, found, "make the nodes alike", "warning")


def domains(fleet: Fleet, need: Need) -> Iterator[Finding]:
    """Nodes by NVLink domain. An engine over several nodes must find all of them in one."""
    found = Counter(facts.gpus.nvlink_domain for facts in fleet.facts.values())
    if not any(found) or need.nodes_per_engine < 2:
        return
    text = ", ".join(f"{domain or 'in none'}: {count} nodes" for domain, count in sorted(found.items()))
    largest = max(count for domain, count in found.items() if domain)
    remedy = "label nodes with ray.io/gpu-domain (launch/env.sh does), and give each set nodes of one domain"
    if largest < need.nodes_per_engine:
        yield Finding("NVLink domains", "failed", f"{text}; an engine needs {need.nodes_per_engine}", remedy, ALL)
    else:
        yield Finding("NVLink domains", "ok" if len(found) == 1 else "warning", text, remedy, ALL)


def clocks(fleet: Fleet, need: Need) -> Iterator[Finding]:
    """Clocks agree with this one's, as far as the time of a call can tell."""
    worst_s = 0.0
    for node, (skew_s, error_s) in fleet.skew_s.items():
        least_s = max(0.0, abs(skew_s) - error_s)
        worst_s = max(worst_s, least_s)
        if least_s > SKEW_WARNING_S:
            status: Status = "failed" if least_s > SKEW_FAILED_S else "warning"
            yield Finding("clock", status, f"{skew_s:+.1f} s from here", "let chrony or ntpd set the clock", node)
    if fleet.skew_s and worst_s <= SKEW_WARNING_S:
        yield Finding("clock", "ok", f"all within {max(worst_s, 0.01):.2f} s, as far as calls can tell", "", ALL)


def runs(fleet: Fleet, need: Need) -> Iterator[Finding]:
    """All nodes see the directory of the runs: checkpoints of one node are read by another."""
    remedy = "set DSPARK_RUNS to a directory on a disk that all nodes share, at the same path"
    blind = sorted(node for node, facts in fleet.facts.items() if facts.sees_runs is False)
    for node in blind:
        yield Finding("runs", "failed", f"{need.runs_dir} there is not the one here", remedy, node)
    if not blind and any(facts.sees_runs for facts in fleet.facts.values()):
        yield Finding("runs", "ok", f"{need.runs_dir} is the same everywhere", "", ALL)


def links(fleet: Fleet, need: Need) -> Iterator[Finding]:
    """Each node that was asked to reaches each other one, on a port of a run, at a rate like the others'."""
    rates = [link.bytes_per_s for link in fleet.links if link.bytes_per_s]
    usual = median(rates) if rates else 0.0
    for link in fleet.links:
        if link.bytes_per_s is None:
            remedy = "open ports from 20000 up to the ephemeral range between the nodes; see DSPARK_SUBNET"
            yield Finding("links", "failed", f"nothing reaches {link.to}: {link.problem}", remedy, link.source)
        elif link.bytes_per_s < SLOW_FRAC * usual:
            text = f"{_rate(link.bytes_per_s)} to {link.to}, where {_rate(usual)} are usual"
            remedy = "look for another network on the way (MTU, cable, a management interface)"
            yield Finding("links", "warning", text, remedy, link.source)
    if rates and len(rates) == len(fleet.links):
        text = f"{len(rates)} tried, {_rate(min(rates))} to {_rate(max(rates))}, one stream"
        yield Finding("links", "ok", text, "", ALL)


def merge(findings: Sequence[Finding], num_nodes: int) -> list[Finding]:
    """Findings that say the same of several nodes as one, in the order of the first."""
    by_text: dict[Finding, list[str]] = {}
    for finding in findings:
        by_text.setdefault(replace(finding, node=""), []).append(finding.node)
    merged = []
    for finding, nodes in by_text.items():
        named = [node for node in nodes if node]
        where = ALL if len(set(named)) == num_nodes > 1 else ", ".join(dict.fromkeys(named))
        merged.append(replace(finding, node=where))
    return merged


def _odd_ones(
    check: str, name: str, found: Mapping[str, str], remedy: str, status: Status = "failed"
) -> Iterator[Finding]:
    """A finding for each node that has not what most have."""
    if not found:
        return
    usual, _ = Counter(found.values()).most_common(1)[0]
    for node, value in found.items():
        if value != usual:
            yield Finding(check, status, f"{name} is {value}, {usual} elsewhere", remedy, node)


def _rate(bytes_per_s: float) -> str:
    return f"{bytes_per_s / 1e9:.2f} GB/s"


RULES: tuple[Callable[[Fleet, Need], Iterator[Finding]], ...] = (
    silent,
    enough,
    versions,
    alike,
    domains,
    clocks,
    runs,
    links,
)
