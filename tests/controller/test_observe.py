"""Readings in, the pools' state out; the clock is passed in."""

import pytest

from dspark_train.controller.observe import WINDOW_S, Observer, store_state
from dspark_train.report.state import EngineLoad

NODES = {"engine-1.0": "10.0.0.1", "engine-2.0": "10.0.0.2"}


def rank(tokens, busy_s, wait_s):
    return {"state": "training", "pid": 7, "tokens": tokens, "busy_s": busy_s, "wait_s": wait_s, "error": ""}


def engine(tokens, busy_s, blocked_s, state="ready"):
    return {"state": state, "pid": 7, "tokens": tokens, "busy_s": busy_s, "blocked_s": blocked_s, "error": ""}


def test_rates_are_differences_over_the_window():
    observer = Observer()
    observer.pool(0.0, 1, {"engine-1.0": engine(0, 0, 0)}, NODES)
    pool = observer.pool(10.0, 1, {"engine-1.0": engine(1000, 4, 6)}, NODES)
    assert pool.tokens_per_s == pytest.approx(100.0)
    assert pool.service_tokens_per_s == pytest.approx(250.0)
    assert pool.blocked_frac == pytest.approx(0.6)


def test_ranks_wait_for_one_another_and_the_group_is_blocked_as_long_as_the_one_that_waits_least():
    observer, ranks = Observer(), [("rank-0", 500, 3, 7), ("rank-1", 1000, 6, 4), ("rank-2", 0, 0, 0)]
    observer.pool(0.0, 2, {name: rank(0, 0, 0) for name, *_ in ranks[:2]}, NODES)
    seen = {name: rank(*counters) for name, *counters in ranks}
    assert observer.pool(10.0, 2, seen, NODES, in_step=True).blocked_frac == pytest.approx(0.4)
    assert observer.pool(10.0, 2, seen, NODES).blocked_frac == pytest.approx(0.55)


def test_the_pools_rates_add_up_over_its_members():
    observer = Observer()
    for at_s, tokens in ((0.0, 0), (10.0, 1000)):
        seen = {"engine-1.0": engine(tokens, at_s, 0), "engine-2.0": engine(tokens / 2, at_s, 0)}
        pool = observer.pool(at_s, 2, seen, NODES)
    assert pool.tokens_per_s == pytest.approx(150.0)
    assert pool.service_tokens_per_s == pytest.approx(150.0)
    assert pool.blocked_frac == pytest.approx(0.0)


def test_old_readings_leave_the_window():
    observer = Observer()
    for second in range(101):
        tokens = min(second, 50) * 100
        pool = observer.pool(float(second), 1, {"engine-1.0": engine(tokens, second, 0)}, NODES)
    assert WINDOW_S < 50
    assert pool.tokens_per_s == 0.0


def test_a_restarted_member_counts_from_zero_without_a_negative_rate():
    observer = Observer()
    observer.pool(0.0, 1, {"engine-1.0": engine(5000, 10, 0)}, NODES)
    pool = observer.pool(1.0, 1, {"engine-1.0": engine(0, 0, 0)}, NODES)
    assert pool.tokens_per_s == 0.0


def test_a_dead_member_is_pending():
    pool = Observer().pool(0.0, 2, {"engine-1.0": engine(0, 0, 0), "engine-2.0": {"state": "dead"}}, NODES)
    assert [(m.name, m.state) for m in pool.members] == [("engine-1.0", "ready"), ("engine-2.0", "dead")]
    assert (pool.ready, pool.pending) == (1, 1)
    assert pool.members[1].node == "10.0.0.2"


def test_an_engines_load_is_told_while_it_works_and_of_the_process_that_feeds_it():
    load = {"running": 0, "waiting": 3, "finished": 9, "prompt_tokens": 70, "kv_cache_frac": 0.5}
    fed = {**engine(0, 0, 0), "in_flight": 4, "num_lost": 1, "load": load}
    seen = {"engine-1.0": fed, "engine-1.1": engine(0, 0, 0), "engine-2.0": {**fed, "load": None}}
    one, other, silent = Observer().pool(0.0, 2, seen, NODES).members
    assert one.load == EngineLoad(leased=4, lost=1, **load)
    assert other.load is None
    assert silent.load == EngineLoad(leased=4, lost=1)
    (dead,) = Observer().pool(0.0, 1, {"engine-1.0": {**fed, "state": "dead"}}, NODES).members
    assert dead.load is None


def test_the_time_in_a_state_starts_anew_with_the_state():
    observer = Observer()
    observer.pool(0.0, 1, {"engine-1.0": engine(0, 0, 0, "starting")}, NODES)
    observer.pool(30.0, 1, {"engine-1.0": engine(0, 0, 0)}, NODES)
    pool = observer.pool(35.0, 1, {"engine-1.0": engine(0, 0, 0)}, NODES)
    assert pool.members[0].since_s == 5.0


def test_a_store_without_an_answer_shows_zeros():
    assert store_state({}).capacity_bytes == 0
