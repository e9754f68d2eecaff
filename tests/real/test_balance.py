"""A real run in auto: slow engines get company, idle ones go, slow ranks get company, and the steps stay the same."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dspark_train.balance.replay import replay
from dspark_train.controller import journal
from tests.faults.inputs import STAND_IN, topology, write_dataset
from tests.real.line import Line

pytestmark = [pytest.mark.real, pytest.mark.long, pytest.mark.timeout(900)]

MOVE_TIMEOUT_S = 240.0
POLL_S = 0.2
PICTURES = "DSPARK_SCREENSHOTS"
"""The environment variable that names where `make screenshots` wants pictures."""
AUTO = (
    "balance={mode: auto, window_s: 3, num_windows: 2, cooldown_s: 6, warm_up_s: 3, memory_s: 30, release_frac: 0.2,"
    " release_windows: 3, engine_start_s: 10, rank_start_s: 10, pause_s: 1}",
    "engines.count={start: 1, max: 2}",
    "trainers.ranks={start: 1, max: 2}",
)
SLOW_ENGINES = {"engine_tokens_per_s": 1200}
"""A rank trains several times as much."""
SLOW_RANKS = {"rank_pack_s": 0.1}
"""A step of four packs takes one rank 0.4 s, some 2,400 tokens/s: less than an engine extracts."""


@pytest.fixture(scope="module")
def line(tmp_path_factory: pytest.TempPathFactory, tiny_target: Path) -> Iterator[Line]:
    root = tmp_path_factory.mktemp("balance")
    write_dataset(root / "data")
    sections = topology(tiny_target, root / "data", root / "lies.json")
    sections["engines"] |= {"entry": STAND_IN, "env": {}}
    sections |= {"run": {"seed": 7, "max_steps": 2000}, "validation": {"every_steps": 2000}}
    sections |= {"checkpoint": {"every_steps": 2000}}  # windows with a checkpoint in them say nothing of ranks
    made = Line(root, sections)
    yield made
    made.end_all()


def throttle(line: Line, run: str, **values: float) -> None:
    """Make members of a run that slow, as docs/balance.md says; replaced as a whole, since it is read at any time."""
    path = line.root / "runs" / run / "throttle.json"
    path.with_suffix(".new").write_text(json.dumps(values))
    path.with_suffix(".new").rename(path)


def wait_until(line: Line, run: str, holds: Callable[[dict[str, int]], bool], what: str) -> None:
    """Until the wanted sizes of the pools are such."""
    deadline_s = time.monotonic() + MOVE_TIMEOUT_S
    while not holds(sizes := wanted(line, run)):
        assert time.monotonic() < deadline_s, f"{what}: {sizes}\n{line.tail(run)}"
        time.sleep(POLL_S)


def wanted(line: Line, run: str) -> dict[str, int]:
    pools = json.loads((line.root / "runs" / run / "state.json").read_text())["pools"]
    return {name: pool["desired"] for name, pool in pools.items()}


def trained(steps: list[dict[str, Any]]) -> list[tuple[int, str]]:
    return [(step["step"], step["data_hash"]) for step in steps]


def test_pools_follow_what_is_slow_and_every_step_is_that_of_a_run_left_alone(line: Line) -> None:
    run = "auto"
    started = line.launch(run, *AUTO, options=("--detach",))
    assert started.returncode == 0, started.stdout + started.stderr
    throttle(line, run, **SLOW_ENGINES)
    wait_until(line, run, lambda sizes: sizes == {"inference": 2, "trainers": 1}, "a second slow engine")
    line.wait_for(run, len(line.steps(run)) + 30)
    throttle(line, run, **SLOW_RANKS)
    wait_until(line, run, lambda sizes: sizes == {"inference": 1, "trainers": 2}, "a rank for an engine")
    line.wait_for(run, len(line.steps(run)) + 30)
    assert line.run("stop", run, "--wait").returncode == 0

    events = journal.read(line.root / "runs" / run / "events.jsonl")
    decisions = list(replay(events))
    assert decisions
    assert all(was == now for was, now in decisions)
    assert {event["text"] for event in events if event["kind"] == "scale.rolled_back"} == set()
    steps = line.steps(run)
    assert {step["num_ranks"] for step in steps} == {1, 2}
    if where := os.environ.get(PICTURES):
        assert line.run("report", run).returncode == 0
        shutil.copyfile(line.root / "runs" / run / "report.png", Path(where) / "balance-real.png")

    assert line.launch("alone", options=("--detach",)).returncode == 0
    line.wait_for("alone", len(steps))
    assert line.run("stop", "alone", "--now").returncode == 0
    alone = line.steps("alone")[: len(steps)]
    assert trained(steps) == trained(alone)
    for step, like in zip(steps, alone, strict=True):
        assert step["loss"] == pytest.approx(like["loss"], rel=1e-5), f"step {step['step']}"
    assert line.left() == []
