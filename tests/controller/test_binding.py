"""Planned nodes become real ones, or the error says what is missing."""

from dataclasses import replace

import pytest

from dspark_train.cluster.protocol import NodeInfo
from dspark_train.controller.binding import DOMAIN_LABEL, ROLE_LABEL, match_nodes, rebind
from dspark_train.errors import ClusterError, NoNode
from dspark_train.plan.spec import PlannedNode


def real(name, num_gpus, alive=True, is_head=False, domain="", role="", address=""):
    labels = {label: value for label, value in ((DOMAIN_LABEL, domain), (ROLE_LABEL, role)) if value}
    address = address or f"10.0.0.{name}"
    return NodeInfo(id=name, address=address, num_gpus=num_gpus, labels=labels, alive=alive, is_head=is_head)


def planned(name, num_gpus, role="inference", domain=""):
    return PlannedNode(name=name, role=role, set_index=0, num_gpus=num_gpus, domain=domain)


PAIR = [planned("e0", 4, domain="set0-0"), planned("e1", 4, domain="set0-0")]
SET = [*PAIR, planned("t", 4, "training")]


def ids(matched):
    return {name: node.id for name, node in matched.items()}


def test_each_planned_node_gets_the_smallest_real_one_that_fits():
    matched = match_nodes([planned("a", 4), planned("b", 8)], [real("1", 8), real("2", 4), real("3", 8)])
    assert matched["a"].id == "2"
    assert matched["b"].id == "1"


def test_a_small_plan_takes_no_node_that_a_large_one_needs():
    matched = match_nodes([planned("small", 0), planned("large", 4)], [real("1", 4), real("2", 0)])
    assert (matched["small"].id, matched["large"].id) == ("2", "1")


def test_dead_nodes_are_not_used_and_what_is_missing_is_named():
    with pytest.raises(ClusterError, match=r"no node with 4 GPUs is left for b; the cluster has: 10.0.0.1 \(4 GPUs\)"):
        match_nodes([planned("a", 4), planned("b", 4)], [real("1", 4), real("2", 4, alive=False)])


# -- roles, domains, the head


def test_the_controllers_node_is_the_clusters_head_where_that_fits():
    nodes = [real("1", 4), real("2", 4), real("3", 4, is_head=True)]
    assert ids(match_nodes(SET, nodes)) == {"t": "3", "e0": "1", "e1": "2"}


def test_a_head_without_the_gpus_is_left_alone():
    nodes = [real("1", 0, is_head=True), real("2", 4), real("3", 4), real("4", 4)]
    assert set(ids(match_nodes(SET, nodes)).values()) == {"2", "3", "4"}


def test_a_head_that_an_engine_needs_is_given_to_it():
    plan = [planned("e0", 8), planned("t", 4, "training")]
    assert ids(match_nodes(plan, [real("1", 8, is_head=True), real("2", 4)])) == {"e0": "1", "t": "2"}


def test_a_node_with_a_role_takes_nothing_else():
    nodes = [real("1", 4, role="training"), real("2", 4, role="inference"), real("3", 4)]
    assert ids(match_nodes(SET, nodes)) == {"t": "1", "e0": "2", "e1": "3"}
    with pytest.raises(ClusterError, match=r"no node with 4 GPUs is left for t; .*10\.0\.0\.1 \(4 GPUs, inference\)"):
        match_nodes(SET, [real(name, 4, role="inference") for name in "123"])


def test_an_engine_keeps_to_one_domain_the_smallest_that_holds_it():
    nodes = [real("1", 4, domain="a"), real("2", 4, domain="b"), real("3", 4, domain="b"), real("4", 4, domain="a")]
    nodes += [real("5", 4, domain="a")]
    assert ids(match_nodes(SET, nodes)) == {"e0": "2", "e1": "3", "t": "1"}


def test_an_engine_is_not_split_over_domains():
    nodes = [real("1", 4, domain="a"), real("2", 4, domain="b"), real("3", 4, domain="c")]
    with pytest.raises(ClusterError, match="no 2 nodes with 4 GPUs in one domain are left for e0, e1"):
        match_nodes(SET, nodes)


# -- after a loss


def bound(*names, **changes):
    return {planned_name: real(name, 4, **changes) for planned_name, name in zip(("e0", "e1", "t"), names, strict=True)}


def test_a_lost_node_is_replaced_by_a_free_one_and_the_others_stay():
    usable = [real("1", 4), real("3", 4), real("9", 4)]
    assert ids(rebind(SET, bound("1", "2", "3"), usable, ["e0", "e1"], ["t"])) == {"e0": "1", "e1": "9", "t": "3"}


def test_a_node_that_came_back_under_a_new_id_is_taken_again():
    usable = [real("0", 4), real("1", 4), real("new", 4, address="10.0.0.2"), real("3", 4)]
    assert ids(rebind(SET, bound("1", "2", "3"), usable, ["e0", "e1"], ["t"]))["e1"] == "new"


def test_an_engine_moves_whole_where_its_domain_has_no_room():
    before = {"e0": real("1", 4, domain="a"), "e1": real("2", 4, domain="a"), "t": real("3", 4, domain="a")}
    usable = [before["e0"], before["t"], real("7", 4, domain="b"), real("8", 4, domain="b")]
    assert ids(rebind(SET, before, usable, ["e0", "e1"], ["t"])) == {"e0": "7", "e1": "8", "t": "3"}


def test_nodes_on_which_nothing_runs_are_taken_and_what_was_lost_is_left_to_them():
    plan = [*SET, planned("e2", 4, domain="set1-0"), planned("e3", 4, domain="set1-0")]
    before = {**bound("1", "2", "3"), "e2": real("4", 4), "e3": real("5", 4)}
    usable = [real(name, 4) for name in "1345"]
    after = ids(rebind(plan, before, usable, ["e0", "e1"], ["e0", "e1", "t"]))
    assert after == {"e0": "1", "e1": "4", "t": "3", "e2": "2", "e3": "5"}


def test_what_is_missing_is_said_where_no_node_is_free():
    with pytest.raises(NoNode, match=r"no node with 4 GPUs is left for t; the cluster has: 10\.0\.0\.1"):
        rebind(SET, bound("1", "2", "3"), [real("1", 4), real("2", 4)], ["t"], ["e0", "e1", "t"])


def test_the_nodes_of_a_set_are_of_one_rack_where_that_has_room():
    sets = [
        PlannedNode(name=f"{kind}{number}-{place}", role=kind, set_index=number, num_gpus=4, domain=domain)
        for number in (0, 1)
        for kind, num, domain in (("inference", 2, f"set{number}-0"), ("training", 1, ""))
        for place in range(num)
    ]
    # By address alone each set would have its ranks in the other's rack.
    racks = {"1": "b", "2": "a", "3": "b", "4": "b", "5": "a", "6": "a"}
    matched = match_nodes(sets, [real(name, 4, domain=rack, is_head=name == "1") for name, rack in racks.items()])
    assert [matched[node.name].labels[DOMAIN_LABEL] for node in sets] == ["b"] * 3 + ["a"] * 3
    few = match_nodes(sets, [real(name, 4, domain="a" if name in "12" else "b") for name in racks])
    assert {few[name].labels[DOMAIN_LABEL] for name in ("inference0-0", "inference0-1")} == {"a"}


def test_a_node_that_is_asked_to_leave_is_not_taken():
    nodes = [real("1", 4), replace(real("2", 4), is_leaving=True)]
    with pytest.raises(ClusterError, match=r"10\.0\.0\.2 \(4 GPUs, being drained\)"):
        match_nodes([planned("a", 4), planned("b", 4)], nodes)
