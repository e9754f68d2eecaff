"""A log is cut into files of a size, nothing of it twice or lost, while several processes write to it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dspark_train.cluster import log_rotation
from dspark_train.cluster.log_rotation import rotate
from dspark_train.report.log_tail import last_lines, log_paths
from dspark_train.store.child import ChildProcess


def test_a_small_log_is_left_alone(tmp_path: Path) -> None:
    log = tmp_path / "rank-0.log"
    assert not rotate(log, 10, 2)
    log.write_text("0123456789")
    assert not rotate(log, 10, 2)


def test_so_many_older_ones_are_kept_the_newest_first(tmp_path: Path) -> None:
    log = tmp_path / "rank-0.log"
    for text in ("first", "second", "third"):
        log.write_text(text)
        assert rotate(log, 1, 2)
    assert (log.read_text(), (tmp_path / "rank-0.log.1").read_text()) == ("", "third")
    assert (tmp_path / "rank-0.log.2").read_text() == "second"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rank-0.log", "rank-0.log.1", "rank-0.log.2"]


def test_a_process_that_has_the_log_open_goes_on_at_its_new_end(tmp_path: Path) -> None:
    log = tmp_path / "engine-1.0.log"
    with log.open("ab") as stream:
        writer = subprocess.Popen(
            [sys.executable, "-c", "print('old', flush=True); input(); print('new', flush=True)"],
            stdin=subprocess.PIPE,
            stdout=stream,
        )
        assert writer.stdin is not None
        while b"old" not in log.read_bytes():
            assert writer.poll() is None
        rotate(log, 1, 1)
        writer.communicate(b"\n", timeout=20)
    assert log.read_text() == "new\n"
    assert (tmp_path / "engine-1.0.log.1").read_text() == "old\n"


def test_without_room_the_log_is_left_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "rank-0.log"
    log.write_text("all of it")

    def full(*args: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(log_rotation.shutil, "copyfileobj", full)
    with pytest.raises(OSError, match="no space"):
        rotate(log, 1, 2)
    assert [path.name for path in tmp_path.iterdir()] == ["rank-0.log"]
    assert log.read_text() == "all of it"


def test_the_last_lines_reach_back_into_what_was_rotated(tmp_path: Path) -> None:
    log = tmp_path / "rank-0.log"
    log.write_text("one\ntwo\n")
    rotate(log, 1, 1)
    log.write_text("three\n")
    assert last_lines(log, 2) == ["two", "three"]
    assert last_lines(log, 1) == ["three"]
    assert list(log_paths(tmp_path)) == ["rank-0"]


def test_a_childs_last_lines_are_found_after_its_log_was_rotated(tmp_path: Path) -> None:
    log = tmp_path / "engine-1.0.log"
    log.write_text("x" * 10_000)
    child = ChildProcess(["python", "-c", "print('the reason', flush=True); import sys; sys.exit(3)"], os.environ, log)
    child.start()
    assert child.wait(30)
    rotate(log, 1, 1)
    log.write_text("after\n")
    assert child.last_lines() == ["after"]
