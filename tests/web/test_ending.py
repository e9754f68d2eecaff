"""What a run leaves behind when it fails: the root cause first, everywhere, and the report."""

import json

import pytest

from dspark_train.cli import app
from dspark_train.report.history import History
from tests.web.live_run import END_TIMEOUT_S, LiveRun

# A member that ends on the fake cluster leaves threads that end where they next ask it something.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")


def test_a_run_that_fails_says_who_failed_first_and_why_and_leaves_its_story(tmp_path, monkeypatch, capsys):
    run = LiveRun(tmp_path / "a1")
    try:
        run.until(lambda: run.state.step > 2)
        with run.layout.log("rank-1").open("a") as file:
            file.write("Traceback ...\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB\n")
        run.fault("rank-1", "nan")
        run.until(lambda: any(event["kind"] == "rank.dead" for event in run.events))
        run.fault("rank-0", "nan")
        run.until(lambda: run.state.state == "failed", END_TIMEOUT_S)
        run.until(lambda: not run.cluster.list(), END_TIMEOUT_S)
    finally:
        run.cluster.end_all()
    cause = "rank-1: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB"
    assert run.state.root_cause == cause
    assert f"root cause: {cause}" in run.layout.report.read_text()
    history = History.from_json(run.layout.history.read_text())
    assert len(history) >= 1
    monkeypatch.setenv("DSPARK_RUNS", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "120")
    assert app.run(["status", "a1"]) == 1
    assert capsys.readouterr().out.splitlines()[1].startswith(f"root cause: {cause[:60]}")
    assert app.run(["status", "a1", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["root_cause"] == cause
    assert app.run(["logs", "a1", "ledger", "-n", "1"]) == 0
    assert capsys.readouterr().out.startswith(f"root cause: {cause}")
