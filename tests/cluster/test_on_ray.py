"""What only the real cluster has: processes, their logs and environment, death."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from dspark_train.cluster.processes import is_alive
from dspark_train.cluster.protocol import Cluster
from dspark_train.errors import ClusterError, PeerLost
from tests.cluster.test_conformance import CALL_S, EXAMPLES, REPOSITORY, spec

pytestmark = pytest.mark.real


@pytest.fixture
def real(ray_cluster: Cluster) -> Iterator[Cluster]:
    yield ray_cluster
    for name in ray_cluster.list():
        ray_cluster.kill(name)


def test_all_output_of_a_member_and_its_children_is_in_its_log(real: Cluster, log: Path) -> None:
    real.create(spec(log=str(log)))
    real.call("m", "print_both", "one", timeout_s=CALL_S)
    assert log.read_text().splitlines() == ["counter is built", "out one", "err one", "child one"]
    real.kill("m")
    real.create(spec(log=str(log)))
    assert log.read_text().splitlines()[-1] == "counter is built"
    assert len(log.read_text().splitlines()) == 5


def test_a_member_that_cannot_be_built_shows_its_last_lines(real: Cluster, log: Path) -> None:
    with pytest.raises(Exception, match="about to fail") as caught:
        real.create(spec(factory=f"{EXAMPLES}:Unbuildable", kwargs={}, log=str(log)))
    assert str(log) in str(caught.value)


def test_the_environment_is_there_before_the_first_import(real: Cluster) -> None:
    real.create(spec(env={"PYTHONPATH": REPOSITORY, "DSPARK_TEST": "yes"}))
    facts = real.call("m", "facts", timeout_s=CALL_S)
    assert (facts["env"], facts["at_import"]) == ("yes", "yes")
    assert facts["pid"] != os.getpid()


def test_a_member_that_dies_is_lost_to_its_caller_and_gone(real: Cluster) -> None:
    real.create(spec())
    with pytest.raises(PeerLost, match="the process of m ended, seen during die"):
        real.call("m", "die", timeout_s=CALL_S)
    with pytest.raises(PeerLost):
        real.call("m", "add", 1, timeout_s=CALL_S)
    real.create(spec())


def test_a_member_that_may_restart_is_back_empty(real: Cluster) -> None:
    real.create(spec(max_restarts=-1))
    real.call("m", "add", 5, timeout_s=CALL_S)
    with pytest.raises(PeerLost):
        real.call("m", "die", timeout_s=CALL_S)
    deadline_s = time.monotonic() + CALL_S
    while True:
        try:
            assert real.call("m", "add", 1, timeout_s=CALL_S) == 1
            return
        except PeerLost:
            assert time.monotonic() < deadline_s


def test_kill_ends_the_process(real: Cluster) -> None:
    real.create(spec())
    pid = real.call("m", "facts", timeout_s=CALL_S)["pid"]
    real.kill("m")
    psutil.wait_procs([psutil.Process(pid)] if is_alive(pid) else [], timeout=CALL_S)
    assert not is_alive(pid)


def test_members_outlive_the_process_that_made_them(real: Cluster) -> None:
    facts = f"{os.environ['RAY_AUTH_TOKEN_PATH']!r}"
    head = real._head  # type: ignore[attr-defined]  # which cluster, for another process
    code = f"""
from pathlib import Path
from dspark_train.cluster.connect import connect
from tests.cluster.test_conformance import spec
cluster = connect({head!r}, "dspark-conformance", Path({facts}))
cluster.create(spec("left"))
assert cluster.call("left", "add", 3, timeout_s=20) == 3
cluster.close()
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, cwd=REPOSITORY)
    assert real.call("left", "add", 4, timeout_s=CALL_S) == 7


def test_a_wrong_token_or_no_cluster_is_refused_soon(real: Cluster, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("0" * 64)
    head = real._head  # type: ignore[attr-defined]
    for address in (head, "127.0.0.1:1"):
        code = f"""
from pathlib import Path
from dspark_train.cluster.connect import connect
from dspark_train.errors import ClusterError
try:
    connect({address!r}, "dspark-x", Path({str(tmp_path / "token")!r}))
except ClusterError as error:
    print("refused", error)
"""
        done = subprocess.run([sys.executable, "-c", code], timeout=60, capture_output=True, text=True)
        assert done.stdout.startswith("refused"), done.stderr


def test_ray_imported_before_its_environment_is_set_is_a_clear_error(real: Cluster, tmp_path: Path) -> None:
    from dspark_train.cluster.connect import connect

    with pytest.raises(ClusterError, match="ray was imported before"):
        connect("127.0.0.1:1", "dspark-x", tmp_path / "token")
