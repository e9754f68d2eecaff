"""A record of days takes no more room than one of minutes, and loses no dip."""

import pytest

from dspark_train.report.history import COLUMNS, History
from dspark_train.report.state import PoolState, RunState

START_S = 1_800_000_000.0


def a_state(step=0, ready=2, loss=None):
    pools = {"inference": PoolState(desired=2, ready=ready), "trainers": PoolState(desired=1, ready=1)}
    return RunState(run="a1", state="running", step=step, pools=pools, loss=loss)


def test_three_days_take_no_more_points_than_are_allowed_and_still_reach_from_end_to_end():
    history = History(max_points=100)
    for second in range(0, 3 * 86400, 30):
        history.add(START_S + second, a_state(step=second, ready=1 if second == 86400 else 2))
    told = history.since(0, 0)
    assert told["is_whole"]
    columns = told["columns"]
    assert 50 <= len(columns["at_s"]) <= 100
    assert columns["at_s"] == sorted(set(columns["at_s"]))
    assert columns["at_s"][0] == pytest.approx(START_S, abs=told["width_s"])
    assert columns["at_s"][-1] + told["width_s"] >= START_S + 3 * 86400 - 30
    assert columns["step"][-1] == 3 * 86400 - 30
    assert columns["engines_ready"].count(1) == 1, "a minute without an engine is seen after days"
    assert len(history.to_json()) < 20_000


def test_means_weigh_every_state_alike_however_often_points_became_one():
    history = History(max_points=2)
    losses = [1.0, 5.0, 3.0, 7.0, 4.0, 10.0, 0.0]
    for second, loss in enumerate(losses):
        history.add(1024.0 + second, a_state(loss=loss))
    columns = history.since(0, 0)["columns"]
    assert history.width_s == 4.0
    assert columns["loss"] == [pytest.approx(sum(losses[:4]) / 4), pytest.approx(sum(losses[4:]) / 3, rel=1e-5)]


def test_who_has_the_points_is_told_only_the_new_ones_and_the_one_that_still_grows():
    history = History()
    for second in range(5):
        history.add(START_S + second, a_state(step=second))
    told = history.since(START_S + 3, history.width_s)
    assert not told["is_whole"]
    assert told["columns"]["at_s"] == [START_S + 3, START_S + 4]
    assert set(told["columns"]) == {"at_s", *COLUMNS}


def test_a_record_that_was_written_is_gone_on_with():
    history = History(max_points=8)
    for second in range(20):
        history.add(START_S + second, a_state(step=second, loss=1.5))
    again = History.from_json(history.to_json())
    assert again.since(0, 0) == history.since(0, 0)
    again.add(START_S + 21, a_state(step=21))
    assert again.since(0, 0)["columns"]["step"][-1] == 21
    for broken in ("", "{}", '{"width_s": 1, "num": [1], "columns": {}}', "[]"):
        with pytest.raises(ValueError, match=r"history|Expecting"):
            History.from_json(broken)


def test_a_clock_that_is_set_back_loses_nothing():
    history = History()
    history.add(START_S, a_state(step=1))
    history.add(START_S - 3600, a_state(step=2))
    assert history.since(0, 0)["columns"]["step"] == [2]


def test_the_pace_is_that_of_the_last_while():
    history = History()
    assert history.pace(600) is None
    for second in range(100):
        history.add(START_S + second, a_state(step=second if second < 50 else 50 + (second - 50) * 2))
    steps, took_s = history.pace(20)
    assert steps / took_s == pytest.approx(2.0)


def test_the_start_of_a_run_is_no_part_of_its_pace():
    history = History()
    for second in range(300):
        history.add(START_S + second, a_state(step=0 if second < 200 else (second - 200) // 5))
    steps, took_s = history.pace(900)
    assert took_s / steps == pytest.approx(5.0, rel=0.1)
