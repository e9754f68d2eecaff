"""Trackers get what TensorBoard gets, cost training nothing, and a fault ends only the tracker.

The real libraries are asked offline, where they are installed (`pip install dspark-train[trackers]`).
"""

from __future__ import annotations

import importlib.util
import threading
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from dspark_train.controller import trackers
from dspark_train.controller.step_log import StepLog
from dspark_train.controller.trackers import Tracking, opener
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


def needs(name: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(importlib.util.find_spec(name) is None, reason=f"{name} is not installed")


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
        tracking.append(step, {})
    tracking.close(timeout_s=0.05)
    assert time.monotonic() - began_s < 5
    assert "slow lags 10000 steps behind" in caplog.text
    assert (
        "left as it is" in caplog.text
    )  # it takes nothing any more, or has not sent all: as its thread happened to run
    hangs.set()


def run_twice(name: str, layout: RunLayout) -> None:
    """Two lives of a run: the second goes back to step 1, as after a resume."""
    for steps in ((1, 2), (2, 3)):
        tracker = opener(name)(layout, {"algorithm": "dspark", "lr": 0.1})
        for step in steps:
            tracker.log(step, {"train/loss": 10.0 - step})
        tracker.close()


@needs("wandb")
def test_wandb_writes_a_run_offline(layout: RunLayout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    run_twice("wandb", layout)
    files = list(layout.root.glob("wandb/offline-run-*/run-a1.wandb"))
    assert len(files) == 2
    assert all(b"train/loss" in file.read_bytes() for file in files)


@needs("mlflow")
def test_mlflow_keeps_one_run_over_two_lives_in_the_runs_directory(
    layout: RunLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    run_twice("mlflow", layout)
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{layout.root}/mlflow.db")
    experiment = client.get_experiment_by_name("dspark-train")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])
    assert (run.info.run_name, run.info.status) == ("a1", "FINISHED")
    assert run.data.params["algorithm"] == "dspark"
    history = client.get_metric_history(run.info.run_id, "train/loss")
    assert [(metric.step, metric.value) for metric in history] == [(1, 9.0), (2, 8.0), (2, 8.0), (3, 7.0)]


@needs("trackio")
def test_trackio_keeps_one_run_over_two_lives_in_the_runs_directory(
    layout: RunLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TRACKIO_DIR", raising=False)
    run_twice("trackio", layout)
    from trackio.sqlite_storage import SQLiteStorage

    assert SQLiteStorage.get_runs("dspark-train") == ["a1"]
    logs = SQLiteStorage.get_logs("dspark-train", "a1")
    assert {row["step"]: row["train/loss"] for row in logs} == {1: 9.0, 2: 8.0, 3: 7.0}
    assert (layout.root / "trackio").is_dir()
