"""What the launchers' tests share: a tiny run's inputs, and the environment that the launchers get."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.inputs import write_dataset
from tests.launch.inputs import topology
from tests.real.line import Line

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="package")
def line(tmp_path_factory: pytest.TempPathFactory, tiny_target: Path) -> Iterator[Line]:
    """A data set and a topology; ends every process that a failed test left."""
    root = tmp_path_factory.mktemp("launch")
    write_dataset(root / "data")
    made = Line(root, topology(tiny_target, root / "data"))
    yield made
    made.end_all()


@pytest.fixture
def short_tmp() -> Iterator[Path]:
    """A directory whose path leaves room for Ray's sockets."""
    path = Path(tempfile.mkdtemp(prefix="dsl", dir="/tmp"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def settings(line: Line, short_tmp: Path) -> dict[str, str]:
    """Variables for the launchers: this checkout, this Python, nodes that share a machine."""
    return {
        "DSPARK_HOME": str(ROOT),
        "DSPARK_PYTHON": sys.executable,
        "DSPARK_TMP": str(short_tmp / "d"),
        "DSPARK_RUNS": str(line.root / "runs"),
        # Nodes that share a machine cannot all use Ray's fixed range of ports, nor believe to have all cores.
        "DSPARK_RAY_ARGS": "--num-cpus=1 --min-worker-port=0 --max-worker-port=0 --dashboard-agent-listen-port=0",
        "DSPARK_JOIN_TIMEOUT_S": "400",  # patient: on a busy machine the tests should be slow, not red
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        **{name: value for name, value in line.env.items() if name not in os.environ},
    }
