"""When the keeper ends its Ray: a pure decision."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from dspark_train.cluster.keeper import (
    CONTROLLER_GRACE_S,
    ORPHAN_GRACE_S,
    RAY_PATH_CHARS,
    SOCKET_PATH_CHARS,
    make_base_dir,
    reason_to_end,
)

DONE = {"state": "done"}
RUNNING = {"state": "running"}


@pytest.mark.parametrize(
    ("state", "idle_s", "over_s", "controller_alive", "reason"),
    [
        (None, 0.0, 0.0, False, ""),
        (None, ORPHAN_GRACE_S + 1, 0.0, False, "the launcher is gone and no run has begun"),
        (RUNNING, 0.0, 0.0, True, ""),
        (RUNNING, 0.0, 0.0, False, ""),  # a dead controller's members are for `stop --now` or a resume to end
        ({"state": "lost"}, 0.0, 0.0, False, ""),
        (DONE, 0.0, 0.0, True, ""),
        (DONE, 0.0, 0.0, False, "the run is done"),
        (DONE, 0.0, CONTROLLER_GRACE_S + 1, True, "the run is done"),
        ({"state": "failed"}, 0.0, 0.0, False, "the run is failed"),
        ({"state": "stopped"}, 0.0, 0.0, False, "the run is stopped"),
    ],
)
def test_a_ray_lives_as_long_as_its_run(
    state: dict[str, str] | None, idle_s: float, over_s: float, controller_alive: bool, reason: str
) -> None:
    assert reason_to_end(state, idle_s=idle_s, over_s=over_s, controller_alive=controller_alive) == reason


def test_its_directory_is_private_and_short_enough_for_sockets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = tmp_path / ("d" * 60)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    base = make_base_dir()
    try:
        assert len(str(base)) + RAY_PATH_CHARS <= SOCKET_PATH_CHARS
        assert base.stat().st_mode & 0o777 == 0o700
    finally:
        base.rmdir()
