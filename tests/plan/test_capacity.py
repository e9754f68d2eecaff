"""The arithmetic of bytes, by hand, and the refusal of a store that would stall the run."""

from __future__ import annotations

import re

import pytest

from dspark_train.errors import TopologyError
from dspark_train.plan.build import build_plan
from dspark_train.plan.capacity import TOKEN_ID_BYTES, plan_capacity
from dspark_train.schedule import layout

from .conftest import TOPOLOGIES, Resolve

MIB, GIB = 2**20, 2**30


def test_the_quickstart_by_hand(shipped: Resolve) -> None:
    overrides = ["engines.max_in_flight=8", "engines.max_in_flight_tokens=4096", "store.segment_gib=0.25"]
    capacity = plan_capacity(shipped("quickstart", *overrides), num_engines=1, num_ranks=2)
    # Four layers of 576 fp32; a pack of 512 such tokens and their ids of 8 bytes; two packs a step, one a rank.
    token, pack = 4 * 576 * 4, 512 * (4 * 576 * 4 + 8)
    assert capacity.bytes_per_token == token == 9216
    assert capacity.step_bytes == 2 * 512 * token == 9_437_184
    assert capacity.in_flight_bytes == 4096 * 9224 == 37_781_504
    assert capacity.store_bytes == 2 * 256 * MIB
    assert capacity.store_needed_bytes == pytest.approx((4 * pack + 4096 * 9224) / 0.9, abs=2)
    assert capacity.ring_bytes == 2 * 1 * pack == 9_445_376
    assert capacity.staging_bytes == 64 * MIB
    assert capacity.link_bytes_per_s_needed is None


def test_three_gb300_nodes_by_hand(shipped: Resolve) -> None:
    capacity = build_plan(shipped("gb300-3node")).capacity
    assert capacity.bytes_per_token == 6 * 7168 * 2 == 86_016
    assert capacity.step_bytes == 32 * 8192 * 86_016 == 22_548_578_304
    assert capacity.in_flight_bytes == 65_536 * 86_024 == 5_637_668_864
    assert capacity.store_bytes == 4 * 64 * GIB
    assert capacity.ring_bytes == 2 * 8 * 8192 * 86_024
    # A sample of 8,192 tokens takes 704.7 MB: eleven granules of 64 MiB, in two threads.
    assert capacity.staging_bytes == 2 * 11 * 64 * MIB
    assert capacity.target_weight_bytes is None


def test_requests_bound_what_is_in_flight_as_tokens_do(shipped: Resolve) -> None:
    capacity = plan_capacity(shipped("quickstart", "engines.max_in_flight=2"), num_engines=3, num_ranks=2)
    assert capacity.in_flight_bytes == 3 * 2 * 512 * 9224


def test_token_ids_are_counted_as_the_store_lays_them_out() -> None:
    assert TOKEN_ID_BYTES == layout.TOKEN_ID_BYTES


def test_a_store_below_two_steps_and_what_is_in_flight_is_refused_at_its_line(shipped: Resolve) -> None:
    with pytest.raises(TopologyError) as caught:
        build_plan(shipped("quickstart", "data.step_packs=4", "store.segment_gib=0.01"))
    # 8 packs of 4,722,688 bytes and 37,781,504 in flight, over 0.9: 0.0782 GiB, so 0.0391 for each of two ranks.
    assert str(caught.value) == (
        "--set store.segment_gib=0.01: store.segment_gib (0.01) is too small: two steps and what 1 engine may have in "
        "flight take 0.08 GiB of 2 segments filled to store.high_mark_frac (0.9): use 0.04 or more, or lower "
        "data.step_packs or engines.max_in_flight_tokens"
    )


def test_the_refusal_names_the_line_of_the_file(shipped: Resolve) -> None:
    line = TOPOLOGIES.joinpath("quickstart.yaml").read_text().split("\n").index("store:") + 2
    with pytest.raises(TopologyError, match=rf"quickstart.yaml:{line}: store.segment_gib \(0.25\) is too small"):
        build_plan(shipped("quickstart", "data.step_packs=128"))


@pytest.mark.parametrize(
    "overrides",
    [
        ["data.step_packs=64"],
        ["trainers.ranks={start: 3, max: 3}", "data.step_packs=4"],
        ["trainers.ranks={start: 1, max: 1}", "store.high_mark_frac=0.5"],
        ["engines.count={start: 4, max: 4}", "engines.max_in_flight=64", "engines.max_in_flight_tokens=65536"],
        ["data.seq_len=4096"],
    ],
)
def test_the_smallest_segment_that_is_named_works_and_less_does_not(shipped: Resolve, overrides: list[str]) -> None:
    with pytest.raises(TopologyError) as caught:
        build_plan(shipped("quickstart", *overrides, "store.segment_gib=0.001"))
    named = re.search(r"use ([0-9.]+) or more", str(caught.value))
    assert named is not None
    build_plan(shipped("quickstart", *overrides, f"store.segment_gib={named[1]}"))
    with pytest.raises(TopologyError):
        build_plan(shipped("quickstart", *overrides, f"store.segment_gib={float(named[1]) - 0.01}"))


def test_an_uneven_step_needs_the_largest_share_in_one_segment(shipped: Resolve) -> None:
    # Three ranks of four packs: one of them holds two packs of each step, four in all, whatever the others hold.
    overrides = ["data.step_packs=4", "trainers.ranks={start: 3, max: 3}", "engines.max_in_flight=1"]
    resolved = shipped("quickstart", *overrides, "store.high_mark_frac=1.0")
    assert plan_capacity(resolved, num_engines=1, num_ranks=3).segment_needed_bytes == 4 * 512 * 9224 + 1


def test_a_segment_holds_the_longest_sample_however_many_ranks_there_are(shipped: Resolve) -> None:
    overrides = ["data.step_packs=4", "trainers.ranks={start: 4, max: 4}", "engines.max_in_flight=1"]
    resolved = shipped("quickstart", *overrides)
    needed = plan_capacity(resolved, num_engines=1, num_ranks=4).segment_needed_bytes
    assert needed is not None
    assert needed >= 512 * 9224


def test_nothing_is_guessed_where_the_hidden_size_is_unknown(shipped: Resolve) -> None:
    plan = build_plan(shipped("gb300-3node", "target.shape={num_layers: 93}"))
    capacity = plan.capacity
    assert capacity.bytes_per_token is capacity.step_bytes is capacity.in_flight_bytes is None
    assert capacity.store_needed_bytes is capacity.ring_bytes is capacity.staging_bytes is None
    assert any("hidden size is not known" in text for text in plan.unresolved)


def test_more_nodes_than_there_are_is_refused(shipped: Resolve) -> None:
    assert len(build_plan(shipped("gb300-12node"), max_nodes=12).nodes) == 12
    with pytest.raises(
        TopologyError, match=r"gb300-12node.yaml:\d+: sets \(4\) makes 12 nodes of which there are 11: "
    ):
        build_plan(shipped("gb300-12node"), max_nodes=11)
