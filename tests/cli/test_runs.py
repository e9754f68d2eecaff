"""A run is found by name, by directory, or as the newest; what is not found is answered with what there is."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from dspark_train.cli.runs import find_run, list_runs, newest_run_of, remembered
from dspark_train.errors import RunNotFound


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "runs"
    for at_s, (name, topology) in enumerate([("a-1", "a"), ("b-1", "b"), ("a-2", "a"), ("c-1", "c")]):
        (root / name).mkdir(parents=True)
        (root / name / "resolved.json").write_text(json.dumps({"topology": {"name": topology}}))
        os.utime(root / name / "resolved.json", (at_s, at_s))
    (root / "not-a-run").mkdir()
    monkeypatch.setenv("DSPARK_RUNS", str(root))
    return root


def test_the_newest_run_is_the_one_launched_last(runs: Path) -> None:
    assert find_run(None).root == runs / "c-1"
    os.utime(runs / "a-1" / "resolved.json", (99, 99))  # resumed
    assert find_run(None).root == runs / "a-1"
    assert [layout.name for layout in list_runs()] == ["a-1", "c-1", "a-2", "b-1"]


def test_a_run_is_found_by_name_and_by_directory(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_run("b-1").root == runs / "b-1"
    assert find_run(str(runs / "b-1")).root == runs / "b-1"
    monkeypatch.chdir(runs)
    monkeypatch.delenv("DSPARK_RUNS")
    assert find_run("./b-1").root == runs / "b-1"


def test_the_newest_run_of_a_topology(runs: Path) -> None:
    assert newest_run_of("a").name == "a-2"
    with pytest.raises(RunNotFound, match=r"no run of topology 'x'.*c-1, a-2, b-1, a-1"):
        newest_run_of("x")


def test_a_typo_in_a_name_suggests_and_lists(runs: Path) -> None:
    with pytest.raises(RunNotFound, match=r"did you mean b-1\? runs there, newest first: c-1, a-2, b-1, a-1"):
        find_run("b1")


def test_a_directory_that_is_no_run_is_said_to_be_none(runs: Path) -> None:
    with pytest.raises(RunNotFound, match=r"not-a-run is not a run: it has no resolved\.json"):
        find_run("not-a-run")


def test_without_any_run_the_answer_says_how_to_get_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DSPARK_RUNS", str(tmp_path / "none"))
    with pytest.raises(RunNotFound, match=r"dspark-train launch --topology FILE.*DSPARK_RUNS"):
        find_run(None)


def test_the_run_of_the_command_is_remembered_for_a_traceback(runs: Path) -> None:
    layout = find_run("a-2")
    assert remembered() == layout
