"""The time left is a range between what was measured in different ways."""

import json

import pytest

from dspark_train.report.history import History
from dspark_train.report.pace import Left, left, paces_on_disk_s, recent_pace_s
from dspark_train.report.state import PoolState, RunState


def test_the_time_left_lies_between_the_paces():
    assert left(100, [2.0, 3.0]) == Left(200.0, 300.0)
    assert left(100, [0.0, 3.0]) == Left(300.0, 300.0)
    assert left(100, []) is None
    assert left(0, [1.0]) is None


def test_the_pace_is_that_of_the_last_steps_waiting_included(tmp_path):
    path = tmp_path / "metrics.jsonl"
    assert recent_pace_s(path) is None
    lines = [
        json.dumps({"step": k, "step_s": 9.0 if k < 900 else 2.0, "wait_s": 1.0, "x": "y" * 900}) for k in range(1000)
    ]
    path.write_text("\n".join(lines) + '\n{"step": 100')
    assert recent_pace_s(path, num_steps=50) == 2.0


def test_both_paces_are_of_the_clock_with_all_that_happened_and_the_files_are_enough(tmp_path):
    pools = {"inference": PoolState(desired=1), "trainers": PoolState(desired=1)}
    history, step = History(), 0.0
    for second in range(900):
        step += 1.0 if second < 700 else 0.5
        history.add(1_800_000_000.0 + second, RunState(run="a1", state="running", step=int(step), pools=pools))
    (tmp_path / "history.json").write_text(history.to_json())
    recent_s, longer_s = paces_on_disk_s(tmp_path / "history.json", tmp_path / "metrics.jsonl")
    assert recent_s == pytest.approx(2.0, rel=0.05)
    assert longer_s == pytest.approx(900 / 800, rel=0.05)


def test_without_a_history_the_last_steps_tell_the_pace(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "step_s": 3.0}\n')
    assert paces_on_disk_s(tmp_path / "history.json", tmp_path / "metrics.jsonl") == [3.0]
