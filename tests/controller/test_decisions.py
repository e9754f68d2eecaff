"""The controller's pure decisions: restarts, whose state a broken group goes on with, scale orders, stalls."""

from dataclasses import replace

import pytest

from dspark_train.controller.restarts import RestartRule, Restarts
from dspark_train.controller.stall import StallWatch, least_s
from dspark_train.controller.survivors import Halted, Source, choose
from dspark_train.controller.targets import target
from dspark_train.errors import TopologyError, UsageError
from dspark_train.plan.build import build_plan
from dspark_train.plan.growth import engine_group, engine_of, grow, member_names
from dspark_train.schedule.messages import Commit, LedgerView
from dspark_train.topology.facts import TargetFacts
from dspark_train.topology.load import load
from dspark_train.topology.resolve import resolve


def quickstart(*overrides):
    return resolve(
        load("topologies/quickstart.yaml", ["data.step_packs=4", "trainers.ranks.max=4", *overrides]),
        TargetFacts(num_layers=30, hidden_size=576),
    )


# -- restarts ----------------------------------------------------------------------------------------------------------


def test_pauses_double_with_each_death_up_to_the_longest_and_old_deaths_are_forgiven():
    restarts = Restarts(RestartRule(first_pause_s=1, max_pause_s=5, max_deaths=10, window_s=100))
    assert restarts.next_at_s("rank-0") == float("-inf")
    pauses = []
    for at_s in (0.0, 10.0, 20.0, 30.0, 40.0):
        restarts.died("rank-0", at_s, "killed")
        pauses.append(restarts.next_at_s("rank-0") - at_s)
    assert pauses == [1, 2, 4, 5, 5]
    restarts.died("rank-0", 141.0, "killed")
    assert restarts.next_at_s("rank-0") - 141.0 == 1


def test_too_many_deaths_in_a_window_are_given_up_with_the_last_reason_until_forgiven():
    restarts = Restarts(RestartRule(max_deaths=3, window_s=100))
    for at_s in (0.0, 10.0, 30.0):
        assert restarts.given_up() == {}
        restarts.died("engine-2", at_s, "out of memory")
    assert restarts.given_up() == {"engine-2": "engine-2 died 3 times in 30 s and is given up; last: out of memory"}
    assert restarts.next_at_s("engine-2") == float("inf")
    restarts.forgive("engine-2")
    assert restarts.next_at_s("engine-2") == float("-inf")
    assert restarts.given_up() == {}


# -- survivors ---------------------------------------------------------------------------------------------------------

DONE = Commit(7, 1, {"loss": 1.0})


@pytest.mark.parametrize(
    ("halted", "expected"),
    [
        ({"a": Halted(True, 5)}, Source("a")),
        ({"a": Halted(True, 6, DONE)}, Source("a", DONE)),
        ({"a": Halted(True, 5), "b": Halted(True, 6, DONE)}, Source("b", DONE)),
        # It keeps what it committed; the ledger has it already.
        ({"a": Halted(True, 5, Commit(6, 1))}, Source("a")),
        # A validation round changes no step.
        ({"a": Halted(True, 5, DONE)}, Source("a", DONE)),
        ({"a": Halted(False, 5), "b": Halted(True, 5)}, Source("b")),
        ({"a": Halted(False, 5)}, None),
        ({"a": Halted(True, None)}, None),
        ({"a": Halted(True, 3)}, None),
        ({}, None),
    ],
)
def test_a_survivor_that_is_ahead_goes_first_then_one_that_is_level_else_none(halted, expected):
    assert choose(7, 5, halted) == expected


# -- orders ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pool", "now", "text", "expected"),
    [("inference", 1, "+1", 2), ("inference", 2, "-1", 1), ("inference", 2, "2", 2), ("trainers", 2, " 4 ", 4)],
)
def test_orders_change_or_set_a_number(pool, now, text, expected):
    assert target(pool, now, text, quickstart().topology) == expected


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("+9", ["--inference +9", "10 is beyond engines.count.max (2)", "the run has 1", "--resume"]),
        ("0", ["0 is beyond engines.count.min (1)"]),
        ("two", ["--inference two", "not a number"]),
        ("++1", ["not a number"]),
        ("", ["not a number"]),
    ],
)
def test_orders_that_cannot_be_had_say_why(text, words):
    with pytest.raises(UsageError) as caught:
        target("inference", 1, text, quickstart().topology)
    assert all(word in str(caught.value) for word in words)


def test_a_grown_plan_keeps_what_runs_where_it_is_and_adds_what_lacks():
    resolved = quickstart()
    plan = build_plan(resolved)
    grown = grow(plan, resolved, member_names("engine", 2), member_names("rank", 3))
    assert grown.processes[: len(plan.processes)] == plan.processes
    assert [process.name for process in grown.processes[len(plan.processes) :]] == ["engine-2.0", "rank-2"]
    assert grow(grown, resolved, ["engine-1"], ["rank-0"]).processes == grown.processes
    assert [process.name for process in engine_group(grown, 2)] == ["engine-2.0"]
    assert [engine_of(name) for name in ("engine-12.3", "rank-0")] == ["engine-12", "rank-0"]


def test_a_plan_does_not_grow_beyond_the_store():
    resolved = quickstart("store.segment_gib=0.045")
    plan = build_plan(resolved)
    with pytest.raises(TopologyError, match=r"store\.segment_gib"):
        grow(plan, resolved, member_names("engine", 2), member_names("rank", 2))


# -- stalls ------------------------------------------------------------------------------------------------------------


def view(unit, *, whole):
    counts = dict.fromkeys(("planned", "leased", "ready", "taken", "trained", "failed", "regenerated"), 0)
    return LedgerView(
        **counts,
        unit=unit,
        step=unit,
        total_steps=99,
        epoch=0,
        resident_bytes=0,
        state="running",
        is_handed_out=whole,
    )


def test_a_unit_whose_samples_are_all_there_and_that_does_not_end_is_a_stall():
    watch = StallWatch(least_s=10)
    assert watch.look(0, view(3, whole=True), {}) == ""
    assert watch.look(10, view(3, whole=True), {}) == ""
    assert "unit 3 has not ended 11 s" in watch.look(11, view(3, whole=True), {})


def test_a_collective_gets_its_time_before_it_is_a_stall():
    overrides = ("supervision.silence_s=10", "trainers.group_timeout_s=60", "trainers.min_step_s=5")
    assert least_s(quickstart(*overrides).topology) == 65
    assert least_s(quickstart("supervision.silence_s=90", *overrides[1:]).topology) == 95


def test_waiting_for_samples_or_for_the_ledger_is_no_stall():
    watch = StallWatch(least_s=10)
    for now_s in range(0, 100, 5):
        assert watch.look(now_s, view(3, whole=False), {}) == ""
    for now_s in range(100, 200, 5):
        assert watch.look(now_s, view(3, whole=True), {"rank-0": {"fault": "the ledger has not answered"}}) == ""
    for now_s in range(200, 300, 5):
        assert watch.look(now_s, replace(view(3, whole=True), state="stopping"), {}) == ""


def test_units_that_are_slow_by_nature_get_twenty_times_their_usual_time():
    watch = StallWatch(least_s=10)
    for unit in range(5):
        assert watch.look(unit * 6.0, view(unit, whole=True), {}) == ""
    assert watch.look(30.0, view(5, whole=True), {}) == ""
    assert watch.look(30.0 + 119, view(5, whole=True), {}) == ""
    assert "unit 5" in watch.look(30.0 + 121, view(5, whole=True), {})
