"""A local Ray starts, outlives its launcher, ends with its run, and leaves nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from dspark_train.cluster.local_ray import end_local, read_facts, start_local, wait_local_end
from dspark_train.cluster.processes import marked_processes
from dspark_train.errors import StartError
from dspark_train.plan.run_layout import RunLayout
from tests.cluster.test_conformance import REPOSITORY

pytestmark = pytest.mark.real

LAUNCH = """
import os, sys
from pathlib import Path
from dspark_train.cluster.connect import connect, namespace_of
from dspark_train.cluster.local_ray import start_local
from dspark_train.plan.run_layout import RunLayout
from tests.cluster.test_conformance import spec
layout = RunLayout(Path(sys.argv[1]))
cluster = connect(start_local(layout, 60.0), namespace_of(layout))
cluster.create(spec())
# A child in a session of its own, as engines have.
cluster.call("m", "print_both", "x; setsid sleep 600 & echo", timeout_s=20)
"""


@pytest.fixture
def layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunLayout]:
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN_PATH"):  # start_local sets them: put back what was there
        monkeypatch.setenv(name, os.environ.get(name, ""))
    made = RunLayout(tmp_path / "run")
    yield made
    end_local(made, 60.0)


def launch(layout: RunLayout) -> set[str]:
    """Launch from a process that ends at once. Returns the names of the processes that Ray consists of."""
    subprocess.run([sys.executable, "-c", LAUNCH, str(layout.root)], check=True, timeout=120, cwd=REPOSITORY)
    return {process.name() for process in marked_processes(read_facts(layout)["temp_dir"])}


def assert_nothing_is_left(layout: RunLayout) -> None:
    facts = read_facts(layout)
    assert marked_processes(facts["temp_dir"]) == []
    assert not Path(facts["temp_dir"]).exists()


def test_it_outlives_its_launcher_listens_on_loopback_only_and_ends_with_its_run(layout: RunLayout) -> None:
    names = launch(layout)
    assert {"gcs_server", "raylet", "sleep"} <= names
    facts = read_facts(layout)
    assert facts["own"] is True
    assert os.stat(facts["token_path"]).st_mode & 0o777 == 0o600
    listening = {
        connection.laddr.ip
        for process in marked_processes(facts["temp_dir"])
        for connection in process.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    }
    assert {ip.removeprefix("::ffff:") for ip in listening} == {"127.0.0.1"}
    layout.state.write_text(json.dumps({"state": "done", "controller": {"pid": 0}}))
    assert wait_local_end(layout, 60.0)
    assert_nothing_is_left(layout)


def test_everything_ends_also_after_its_keeper_was_killed(layout: RunLayout) -> None:
    launch(layout)
    keeper = int(read_facts(layout)["keeper_pid"])
    os.kill(keeper, signal.SIGKILL)
    end_local(layout, 60.0)
    assert_nothing_is_left(layout)
    end_local(layout, 60.0)


def test_the_death_of_its_head_ends_all_of_it(layout: RunLayout) -> None:
    launch(layout)
    (gcs,) = [p for p in marked_processes(read_facts(layout)["temp_dir"]) if p.name() == "gcs_server"]
    gcs.kill()
    assert wait_local_end(layout, 90.0)
    assert_nothing_is_left(layout)
    assert "the Ray head died" in layout.log("ray").read_text()


def test_what_does_not_start_says_so_with_its_log_and_leaves_nothing(layout: RunLayout) -> None:
    before = {process.pid for process in psutil.process_iter() if "dspark_train.cluster" in " ".join(cmdline(process))}
    with pytest.raises(StartError, match="the local Ray did not start") as caught:
        start_local(layout, 30.0, num_cpus=-1)
    assert str(layout.log("ray")) in str(caught.value)
    assert "ended with code" in str(caught.value)
    after = {process.pid for process in psutil.process_iter() if "dspark_train.cluster" in " ".join(cmdline(process))}
    assert after <= before
    assert not layout.cluster.exists()


def test_patience_ends_at_the_deadline(layout: RunLayout) -> None:
    started_s = time.monotonic()
    with pytest.raises(StartError):
        start_local(layout, 0.3)
    assert time.monotonic() - started_s < 20.0


def cmdline(process: psutil.Process) -> list[str]:
    try:
        return list(process.cmdline())
    except psutil.NoSuchProcess:
        return []
