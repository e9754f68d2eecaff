"""Slurm: a real one on this machine, whose slurmd each are a node, and a whole run as a job."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dspark_train.store.ports import reserve_ports
from tests.launch.conftest import ROOT
from tests.launch.inputs import NUM_STEPS
from tests.launch.slurm import Slurm, missing
from tests.real.line import Line

JOB_TIMEOUT_S = 600.0
ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")

pytestmark = [
    pytest.mark.lab,
    pytest.mark.real,
    pytest.mark.timeout(900),
    pytest.mark.skipif(bool(missing()), reason=f"a Slurm needs {missing()}: make launchers installs it"),
]


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    with Slurm(tmp_path_factory.mktemp("slurm"), ("n1", "n2")) as made:
        yield made


@pytest.fixture
def variables(settings: dict[str, str]) -> Iterator[dict[str, str]]:
    """Of a job whose nodes share one machine and its loopback address."""
    locks = reserve_ports(["head"])
    yield settings | {"DSPARK_ADDRESS": "127.0.0.2", "DSPARK_HEAD": f"127.0.0.2:{locks['head'].port}"}
    locks["head"].release()


def submit(slurm: Slurm, line: Line, variables: dict[str, str], log: Path, *args: str) -> str:
    options = ["--parsable", "--nodes=2", f"--output={log}", "--export=ALL", f"--chdir={ROOT}"]
    return slurm.run(
        "sbatch",
        *options,
        str(ROOT / "launch/slurm/run.sbatch"),
        "--topology",
        str(line.topology_file),
        *args,
        env=variables,
    ).strip()


def wait_until(slurm: Slurm, job: str, states: tuple[str, ...], log: Path) -> str:
    deadline_s = time.monotonic() + JOB_TIMEOUT_S
    while (state := slurm.state_of(job)) not in states:
        assert time.monotonic() < deadline_s, f"job is {state}\n{log.read_text()}\n{slurm.logs()}"
        time.sleep(1)
    return state


def test_a_run_over_two_nodes_passes_through_sbatch_and_leaves_nothing(
    slurm: Slurm, line: Line, variables: dict[str, str], tmp_path: Path
) -> None:
    log = tmp_path / "job.log"
    job = submit(slurm, line, variables | {"DSPARK_RUN": "slurm"}, log)
    state = wait_until(slurm, job, ENDED, log)
    assert state == "COMPLETED", f"{log.read_text()}\n{line.tail('slurm')}\n{slurm.logs()}"
    assert [step["step"] for step in line.steps("slurm")] == list(range(1, NUM_STEPS + 1))
    assert line.left() == []
    assert not list(ROOT.glob(".slurm-*"))


def test_a_job_that_is_cancelled_leaves_nothing_and_its_run_is_resumed_by_the_next(
    slurm: Slurm, line: Line, variables: dict[str, str], tmp_path: Path
) -> None:
    sets = ("--set", "run.max_steps=400", "--set", "trainers.min_step_s=0.3", "--set", "checkpoint.every_steps=500")
    log, variables = tmp_path / "job.log", variables | {"DSPARK_RUN": "cut"}
    job = submit(slurm, line, variables, log, *sets)
    wait_until(slurm, job, ("RUNNING", *ENDED), log)
    line.wait_for("cut", step=3)
    slurm.run("scancel", "--batch", "--signal=TERM", job)
    wait_until(slurm, job, ENDED, log)
    reached = line.steps("cut")[-1]["step"]
    assert line.left() == []
    more = ("--resume", "--set", f"run.max_steps={reached + 2}")
    again = submit(slurm, line, variables, log, *more)
    assert wait_until(slurm, again, ENDED, log) == "COMPLETED", log.read_text() + line.tail("cut")
    assert [step["step"] for step in line.steps("cut")] == list(range(1, reached + 3))
