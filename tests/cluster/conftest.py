"""The clusters that the conformance tests run on: the shipped fake, and a real local Ray."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dspark_train.cluster.connect import connect_run
from dspark_train.cluster.fake import FakeCluster
from dspark_train.cluster.local_ray import end_local, start_local
from dspark_train.cluster.protocol import Cluster
from dspark_train.plan.run_layout import RunLayout

START_TIMEOUT_S = 60.0
END_TIMEOUT_S = 60.0


@pytest.fixture(scope="session")
def ray_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A local Ray of the tests' own."""
    layout = RunLayout(tmp_path_factory.mktemp("runs") / "conformance")
    start_local(layout, START_TIMEOUT_S)
    try:
        cluster = connect_run(layout)
        yield cluster
        cluster.close()
    finally:
        end_local(layout, END_TIMEOUT_S)


@pytest.fixture(params=["fake", pytest.param("ray", marks=pytest.mark.real)])
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Each cluster in turn, empty at the start and at the end."""
    if request.param == "fake":
        fake = FakeCluster()
        yield fake
        fake.end_all()
        return
    real: Cluster = request.getfixturevalue("ray_cluster")
    yield real
    for name in real.list():
        real.kill(name)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "logs" / "m.log"
