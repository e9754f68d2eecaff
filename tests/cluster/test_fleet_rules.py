"""What is said of the nodes together, by made-up facts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dspark_train.cluster.checks import Finding, Need
from dspark_train.cluster.fleet_rules import Fleet, judge, merge
from dspark_train.cluster.node_facts import Gpus, Link, NodeFacts

NEED = Need(Path("runs"), num_nodes=3)
ONE = NodeFacts("", versions={"python": "3.12.3", "ray": "2.60.0", "torch": "2.13.0"}, sees_runs=True)
NODES = ("10.0.0.1", "10.0.0.2", "10.0.0.3")
LINKS = tuple(Link(source, to, 1e9) for source in NODES for to in NODES if source != to)


def fleet(**third: object) -> Fleet:
    """Three nodes alike, but for what is changed of the third."""
    facts = {node: replace(ONE, address=node) for node in NODES}
    facts[NODES[2]] = replace(facts[NODES[2]], **third)  # type: ignore[arg-type]
    return Fleet(facts, dict.fromkeys(NODES, (0.0, 0.01)), LINKS)


def bad(of: Fleet, need: Need = NEED) -> list[tuple[str, str, str, str]]:
    return [(f.check, f.status, f.node, f.text) for f in judge(of, need) if f.status != "ok"]


def test_nodes_that_are_alike_need_nothing() -> None:
    findings = list(judge(fleet(), NEED))
    assert {(finding.check, finding.status) for finding in findings} == {
        ("nodes", "ok"),
        ("versions", "ok"),
        ("clock", "ok"),
        ("runs", "ok"),
        ("links", "ok"),
    }


@pytest.mark.parametrize(
    ("third", "expected"),
    [
        (
            {"versions": {**ONE.versions, "ray": "2.59.0"}},
            ("versions", "failed", "ray is 2.59.0, 2.60.0 elsewhere"),
        ),
        (
            {"versions": {"python": "3.12.3", "ray": "2.60.0"}},
            ("versions", "failed", "torch is missing, 2.13.0 elsewhere"),
        ),
        ({"page_bytes": 65536}, ("page size", "warning", "page size is 64 KiB, 4 KiB elsewhere")),
        ({"memlock_bytes": 65536}, ("locked memory", "warning", "locked memory is 64 KiB, any elsewhere")),
        ({"gpus": Gpus(driver="570")}, ("GPU driver", "warning", "GPU driver is 570, none elsewhere")),
        ({"sees_runs": False}, ("runs", "failed", "runs there is not the one here")),
    ],
)
def test_the_node_that_differs_is_named(third: dict[str, object], expected: tuple[str, str, str]) -> None:
    check, status, text = expected
    assert bad(fleet(**third)) == [(check, status, NODES[2], text)]


@pytest.mark.parametrize(
    ("skew", "status"), [((0.4, 0.01), None), ((2.0, 1.5), None), ((-2.0, 0.1), "warning"), ((60.0, 0.1), "failed")]
)
def test_a_clock_is_wrong_only_as_far_as_a_call_can_tell(skew: tuple[float, float], status: str | None) -> None:
    of = replace(fleet(), skew_s={**fleet().skew_s, NODES[1]: skew})
    expected = [("clock", status, NODES[1], f"{skew[0]:+.1f} s from here")] if status else []
    assert bad(of) == expected


def test_a_way_that_is_shut_fails_and_a_slow_one_is_shown_against_the_others() -> None:
    links = [Link(NODES[0], NODES[1], None, "timed out"), Link(NODES[1], NODES[2], 1e8), *LINKS[1:3], *LINKS[4:]]
    assert bad(replace(fleet(), links=links)) == [
        ("links", "failed", NODES[0], "nothing reaches 10.0.0.2: timed out"),
        ("links", "warning", NODES[1], "0.10 GB/s to 10.0.0.3, where 1.00 GB/s are usual"),
    ]


def test_too_few_nodes_and_silent_ones_fail() -> None:
    two = replace(fleet(), facts={node: fleet().facts[node] for node in NODES[:2]}, silent={NODES[2]: "did not start"})
    assert bad(two) == [
        ("answers", "failed", NODES[2], "did not start"),
        ("nodes", "failed", "", "2 nodes answer; the topology needs 3"),
    ]


@pytest.mark.parametrize(
    ("third_domain", "span", "status"),
    [("a.0", 2, None), ("b.0", 2, "warning"), ("b.0", 3, "failed"), ("b.0", 1, None)],
)
def test_an_engine_over_several_nodes_needs_them_in_one_nvlink_domain(
    third_domain: str, span: int, status: str | None
) -> None:
    of = fleet()
    domains = dict(zip(NODES, ("a.0", "a.0", third_domain), strict=True))
    facts = {node: replace(one, gpus=Gpus(nvlink_domain=domains[node])) for node, one in of.facts.items()}
    found = [
        f.status
        for f in judge(replace(of, facts=facts), replace(NEED, nodes_per_engine=span))
        if f.check == "NVLink domains" and f.status != "ok"
    ]
    assert found == ([status] if status else [])


def test_what_all_nodes_have_in_common_is_said_once() -> None:
    same = [Finding("disk", "ok", "10 GiB free", "", node) for node in NODES]
    odd = Finding("disk", "failed", "0 GiB free", "free some", NODES[1])
    merged = merge([same[0], odd, *same[1:]], 3)
    assert [(f.text, f.node) for f in merged] == [("10 GiB free", "all nodes"), ("0 GiB free", NODES[1])]
    assert [f.node for f in merge([same[0], same[2]], 3)] == ["10.0.0.1, 10.0.0.3"]
