"""Trackers get what TensorBoard gets, cost training nothing, and a fault ends only the tracker.

The real libraries write offline, two lives of a run in processes of their own, and are read back with their own means,
where they are installed (`pip install dspark-train[trackers]`).
"""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from dspark_train.controller import trackers
from dspark_train.controller.figures import read_lines
from dspark_train.controller.step_log import StepLog
from dspark_train.controller.trackers import Tracking
from dspark_train.plan.run_layout import RunLayout


class Memory:
    """A tracker that remembers."""

    def __init__(self) -> None:
        self.logged: list[tuple[int, Mapping[str, float]]] = []
        self.closed = False

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self.logged.append((step, values))

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def layout(tmp_path: Path) -> RunLayout:
    root = tmp_path / "a1"
    root.mkdir()
    return RunLayout(root)


def test_a_tracker_gets_the_figures_of_every_step_and_round(layout: RunLayout) -> None:
    memory = Memory()
    log = StepLog(layout, 0, [Tracking("memory", lambda layout, settings: memory, layout, {})])
    log.append("validate", 0, {"loss": 9.0})
    log.append("train", 1, {"loss": 8.0, "tokens": 100, "step_s": 2.0, "data_hash": "ab"})
    log.close()
    log.close()
    assert memory.logged == [
        (0, {"val/loss": 9.0}),
        (1, {"train/loss": 8.0, "throughput/tokens": 100.0, "throughput/step_s": 2.0, "throughput/tokens_per_s": 50.0}),
    ]
    assert memory.closed


def test_a_tracker_that_cannot_be_opened_is_told_once_and_the_record_goes_on(
    layout: RunLayout, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(layout: RunLayout, settings: Mapping[str, object]) -> Memory:
        raise ImportError("no module named 'nowhere'")

    log = StepLog(layout, 0, [Tracking("nowhere", refuse, layout, {})])
    for step in (1, 2, 3):
        log.append("train", step, {"loss": 1.0})
    log.close()
    assert log.train.last["step"] == 3
    assert caplog.text.count("nowhere is not written to any more: ImportError") == 1


def test_a_tracker_that_hangs_holds_nobody_up_and_is_left_at_the_end(
    layout: RunLayout, caplog: pytest.LogCaptureFixture
) -> None:
    hangs = threading.Event()

    class Hanging(Memory):
        def log(self, step: int, values: Mapping[str, float]) -> None:
            hangs.wait(30)

    tracking = Tracking("slow", lambda layout, settings: Hanging(), layout, {})
    began_s = time.monotonic()
    for step in range(trackers.MAX_QUEUED + 10):
        tracking.append("train", step, {})
    tracking.close(timeout_s=0.05)
    assert time.monotonic() - began_s < 5
    assert "slow lags 10000 steps behind" in caplog.text
    assert (
        "left as it is" in caplog.text
    )  # it takes nothing any more, or has not sent all: as its thread happened to run
    hangs.set()


def test_steps_that_come_again_after_a_resume_are_given_once(layout: RunLayout) -> None:
    memory = Memory()
    for resume_step, last_step in ((0, 3), (1, 5)):
        log = StepLog(layout, resume_step, [Tracking("memory", lambda layout, settings: memory, layout, {})])
        for step in range(resume_step + 1, last_step + 1):
            log.append("train", step, {"loss": 1.0})
        log.close()
    assert [step for step, _ in memory.logged] == [1, 2, 3, 4, 5]


def test_what_an_earlier_life_could_not_give_is_taken_from_the_record(layout: RunLayout) -> None:
    def refuse(layout: RunLayout, settings: Mapping[str, object]) -> Memory:
        raise OSError("gone")

    memory = Memory()
    first = StepLog(layout, 0, [Tracking("memory", refuse, layout, {})])
    first.append("validate", 0, {"loss": 9.0})
    first.append("train", 1, {"loss": 8.0, "data_hash": "ab"})
    first.append("train", 2, {"loss": 7.0})
    first.append("validate", 2, {"loss": float("nan"), "accept_len": 1.5})
    first.close()
    again = StepLog(layout, 2, [Tracking("memory", lambda layout, settings: memory, layout, {})])
    again.append("train", 3, {"loss": 6.0})
    again.close()
    assert memory.logged == [
        (0, {"val/loss": 9.0}),
        (1, {"train/loss": 8.0}),
        (2, {"train/loss": 7.0}),
        (2, {"val/accept_len": 1.5}),
        (3, {"train/loss": 6.0}),
    ]


LIVES = ((0, 4), (2, 6))
"""The second goes back two steps, as after a crash: it resumes from a checkpoint."""
TRAINED = [(step, 10.0 - step) for step in range(1, 7)]
VALIDATED = [(step, 20.0 - step) for step in (0, 2, 4, 6)]


def live_twice(name: str, layout: RunLayout) -> None:
    """Two lives of a run, each in a process that is cut off from the network; neither may ask for it."""
    pytest.importorskip(name, reason=f"{name} is not installed")
    quiet = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "CI"))}
    nowhere = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9")
    for resume_step, last_step in LIVES:
        script = Path(__file__).with_name("tracked_life.py")
        done = subprocess.run(
            [sys.executable, str(script), name, str(layout.root), str(resume_step), str(last_step)],
            env={**quiet, **nowhere, "PYTHONPATH": str(script.parents[2])},
            capture_output=True,
            text=True,
            timeout=250,
        )
        told = done.stdout + done.stderr
        assert done.returncode == 0, told
        assert "closed after" in told
        assert "asked for" not in told, told
        assert "not written to any more" not in told, told
    assert [line["step"] for line in read_lines(layout.metrics)] == [step for step, _ in TRAINED]


@pytest.fixture
def settings_of_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without any variable of any tracker."""
    for name in list(os.environ):
        if name.startswith(("WANDB_", "MLFLOW_", "TRACKIO_", "HF_", "DO_NOT_TRACK")):
            monkeypatch.delenv(name)


def wandb_records(file: Path) -> Iterator[Any]:
    """The records of a .wandb file: blocks of 32 KiB with chunks of (checksum, length, kind), as in LevelDB's log."""
    from wandb.proto.wandb_internal_pb2 import Record

    content, at, parts = file.read_bytes(), 7, b""
    while at + 7 <= len(content):
        if (left := -at % 32768) and left < 7:
            at += left
            continue
        _, length, kind = struct.unpack("<IHB", content[at : at + 7])
        parts += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):
            yield Record.FromString(parts)
            parts = b""


@pytest.mark.usefixtures("settings_of_nobody")
def test_wandb_writes_each_step_once_over_two_lives_offline(layout: RunLayout) -> None:
    live_twice("wandb", layout)
    rows, ids, configs = [], [], []
    for file in sorted(layout.root.glob("wandb/offline-run-*/run-a1.wandb")):
        for record in wandb_records(file):
            if record.HasField("run"):
                ids.append((record.run.run_id, record.run.project, record.run.resumed))
                configs.append({item.key: json.loads(item.value_json) for item in record.run.config.update})
            if record.HasField("history"):
                rows.append({item.key or item.nested_key[0]: item.value_json for item in record.history.item})
    assert {one[:2] for one in ids} == {("a1", "dspark-train")}
    assert configs[0]["algorithm"] == "dspark"
    told = [{key: float(value) for key, value in row.items()} for row in rows]
    assert [(row["step"], row["train/loss"]) for row in told if "train/loss" in row] == TRAINED
    assert [(row["step"], row["val/loss"]) for row in told if "val/loss" in row] == VALIDATED


@pytest.mark.usefixtures("settings_of_nobody")
def test_mlflow_keeps_each_step_once_in_one_run_over_two_lives(layout: RunLayout) -> None:
    live_twice("mlflow", layout)
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{layout.root}/mlflow.db")
    experiment = client.get_experiment_by_name("dspark-train")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])
    assert (run.info.run_name, run.info.status) == ("a1", "FINISHED")
    assert run.data.params["algorithm"] == "dspark"
    for key, expected in (("train/loss", TRAINED), ("val/loss", VALIDATED)):
        history = client.get_metric_history(run.info.run_id, key)
        assert [(metric.step, metric.value) for metric in history] == expected


@pytest.mark.usefixtures("settings_of_nobody")
def test_trackio_keeps_each_step_once_in_one_run_over_two_lives(
    layout: RunLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    live_twice("trackio", layout)
    monkeypatch.setenv("TRACKIO_DIR", str(layout.root / "trackio"))

    def asked(*what: str) -> Any:
        command = [str(Path(sys.executable).with_name("trackio")), *what, "--project", "dspark-train", "--json"]
        return json.loads(subprocess.run(command, capture_output=True, check=True, timeout=120).stdout)

    assert asked("list", "runs")["runs"] == ["a1"]
    for key, expected in (("train/loss", TRAINED), ("val/loss", VALIDATED)):
        values = asked("get", "metric", "--run", "a1", "--metric", key)["values"]
        assert [(one["step"], one["value"]) for one in values] == expected
