"""The journal and the logs as the command line shows them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dspark_train.cli import app
from dspark_train.controller.journal import Journal
from dspark_train.plan.run_layout import RunLayout
from dspark_train.report import state_file
from dspark_train.report.log_tail import last_lines
from dspark_train.report.state import PoolState, RunState


@pytest.fixture
def layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunLayout:
    monkeypatch.setenv("DSPARK_RUNS", str(tmp_path))
    made = RunLayout(tmp_path / "a-1")
    made.logs.mkdir(parents=True)
    made.resolved.write_text("{}")
    pools = {"inference": PoolState(desired=1), "trainers": PoolState(desired=1)}
    state_file.write(made.state, RunState(run="a-1", state="done", pools=pools))
    journal = Journal(made.events)
    journal.write("engine.ready", "engine-1.0", "the probe is right", pid=7)
    journal.write("run.failed", "controller", "it failed\nand here is why")
    for name, num_lines in (("engine-1.0", 30), ("engine-1.1", 1), ("ledger", 2)):
        made.log(name).write_text("".join(f"{name} line {n}\n" for n in range(num_lines)))
    return made


def shown(args: list[str], capsys: pytest.CaptureFixture[str]) -> list[str]:
    assert app.run(args) == 0
    return capsys.readouterr().out.splitlines()


def test_events_are_lines_for_people(layout: RunLayout, capsys: pytest.CaptureFixture[str]) -> None:
    first, second, third = shown(["events", "a-1"], capsys)
    assert first.split()[1:] == ["engine-1.0", "engine.ready", "the", "probe", "is", "right"]
    assert second.endswith("it failed")
    assert third == "    and here is why"


@pytest.mark.parametrize("follow", [[], ["--follow"]])
def test_events_as_json_are_the_journals_lines(
    layout: RunLayout, follow: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    events = [json.loads(line) for line in shown(["events", "--json", *follow], capsys)]
    assert [(event["kind"], event.get("pid")) for event in events] == [("engine.ready", 7), ("run.failed", None)]


def test_logs_of_one_component_are_its_last_lines(layout: RunLayout, capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(["logs", "a-1", "engine-1.0", "-n", "2"], capsys) == ["engine-1.0 line 28", "engine-1.0 line 29"]
    assert shown(["logs", "engine-1.0", "-n", "1"], capsys) == ["engine-1.0 line 29"]
    assert shown(["logs", "ledger", "-f"], capsys) == ["ledger line 0", "ledger line 1"]


def test_logs_of_an_engine_of_several_nodes_are_all_its_parts(
    layout: RunLayout, capsys: pytest.CaptureFixture[str]
) -> None:
    assert shown(["logs", "a-1", "engine-1", "-n", "1"], capsys) == [
        "==> engine-1.0 <==",
        "engine-1.0 line 29",
        "==> engine-1.1 <==",
        "engine-1.1 line 0",
    ]


def test_logs_without_a_component_are_all_of_them(layout: RunLayout, capsys: pytest.CaptureFixture[str]) -> None:
    heads = [line for line in shown(["logs"], capsys) if line.startswith("==>")]
    assert heads == ["==> engine-1.0 <==", "==> engine-1.1 <==", "==> ledger <=="]


def test_merged_logs_are_in_the_order_in_which_things_happened(
    layout: RunLayout, capsys: pytest.CaptureFixture[str]
) -> None:
    layout.log("engine-1.0").write_text(
        "2026-11-30 04:38:15,150 INFO late\n  and its trace\n2026-11-30 04:38:16.354 | INFO | later\n"
    )
    layout.log("engine-1.1").write_text("")
    layout.log("ledger").write_text("no time at all\n2026-11-30 04:38:15,900 INFO between\nI1130 04:38:20.5 no time\n")
    assert shown(["logs", "--merge"], capsys) == [
        "ledger     | no time at all",
        "engine-1.0 | 2026-11-30 04:38:15,150 INFO late",
        "engine-1.0 |   and its trace",
        "ledger     | 2026-11-30 04:38:15,900 INFO between",
        "ledger     | I1130 04:38:20.5 no time",
        "engine-1.0 | 2026-11-30 04:38:16.354 | INFO | later",
    ]
    assert shown(["logs", "--merge", "--only", "led*,rank-*", "-n", "1"], capsys) == [
        "ledger | I1130 04:38:20.5 no time"
    ]


def test_of_a_run_that_failed_the_root_cause_comes_first(layout: RunLayout, capsys: pytest.CaptureFixture[str]) -> None:
    pools = {"inference": PoolState(desired=1), "trainers": PoolState(desired=1)}
    failed = RunState(run="a-1", state="failed", pools=pools, root_cause="engine-1.0: out of memory")
    state_file.write(layout.state, failed)
    assert shown(["logs", "ledger", "-n", "1"], capsys)[0] == "root cause: engine-1.0: out of memory"


def test_a_component_that_is_not_there_is_answered_with_those_that_are(
    layout: RunLayout, capsys: pytest.CaptureFixture[str]
) -> None:
    assert app.run(["logs", "a-1", "rank-7"]) == 2
    assert capsys.readouterr().err == (
        "error: run a-1 has no log of 'rank-7': there are engine-1.0, engine-1.1, ledger\n"
    )
    assert app.run(["logs", "a1"]) == 2
    assert "did you mean a-1?" in capsys.readouterr().err


def test_the_last_lines_of_a_large_log_are_read_from_its_end(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    path.write_text("".join(f"{n:06d} {'x' * 100}\n" for n in range(5000)))
    assert [line[:6] for line in last_lines(path, 3)] == ["004997", "004998", "004999"]
    assert len(last_lines(path, 2000)) == 2000
    assert len(last_lines(path, 9999)) == 5000
    assert last_lines(path, 0) == []
