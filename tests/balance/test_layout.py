"""Which splits a topology allows."""

from __future__ import annotations

from pathlib import Path

from dspark_train.balance.layout import Layout
from dspark_train.balance.seen import Split
from dspark_train.topology.facts import TargetFacts
from dspark_train.topology.load import load
from dspark_train.topology.resolve import resolve

TOPOLOGIES = Path(__file__).parents[2] / "topologies"


def layout(name: str, *overrides: str) -> Layout:
    return Layout.of(resolve(load(TOPOLOGIES / f"{name}.yaml", overrides), TargetFacts()))


def test_where_both_share_nodes_an_engine_more_is_its_gpus_of_ranks_less() -> None:
    one = layout("single-node")
    assert set(one.splits()) == {Split(n, k) for n in range(1, 8) for k in range(1, 8) if n + k <= 8}


def test_an_engine_over_two_nodes_takes_the_gpus_of_both() -> None:
    four = layout(
        "single-node",
        "sets=2",
        "nodes.shared={count: 2, gpus: 4}",
        "engines.nodes_per_engine=2",
        "engines.tensor_parallel=8",
        "engines.count={start: 1, max: 7}",
        "trainers.ranks={start: 4, max: 16}",
        "store.segment_gib=64",
    )
    # Two sets of two nodes of four GPUs: an engine takes a set, a second one would leave no rank a place.
    assert set(four.splits()) == {Split(1, k) for k in range(1, 9)}


def test_pools_with_nodes_of_their_own_do_not_bound_each_other() -> None:
    twelve = layout("gb300-12node", "store.segment_gib=200")
    # Four sets: two inference nodes hold one engine of eight GPUs, a training node four ranks.
    assert (twelve.min_engines, set(twelve.most_engines), twelve.ranks) == (1, {4}, range(4, 17))


def test_on_nodes_without_gpus_the_bounds_alone_count() -> None:
    assert set(layout("quickstart").splits()) == {Split(n, k) for n in (1, 2) for k in (1, 2)}


def test_a_split_whose_store_would_be_too_small_is_not_legal() -> None:
    # A step of 60 packs takes 5 GB; two of them, and 1.3 GB in flight for each engine, need more than one segment.
    small = layout("single-node", "data.step_packs=60", "trainers.ranks.start=4", "engines.count.start=4")
    assert not small.is_legal(Split(7, 1))
    assert small.is_legal(Split(2, 6))
