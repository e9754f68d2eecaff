"""The whole line on real parts: Ray, mooncake_master, vLLM, gloo ranks, speculators' DSpark."""

from __future__ import annotations

import json
import os
import signal
import time

import pytest

from tests.faults.inputs import STAND_IN

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1200)]
SAME_LOSS = 1e-5
GONE_S = 60.0
"""From the keeper's death to that of everything that it kept."""


def assert_same_training(steps, reference):
    assert [step["step"] for step in steps] == [step["step"] for step in reference]
    assert [step["data_hash"] for step in steps] == [step["data_hash"] for step in reference]
    for step, expected in zip(steps, reference, strict=True):
        assert step["loss"] == pytest.approx(expected["loss"], rel=SAME_LOSS), f"step {step['step']}"


@pytest.fixture(scope="module")
def reference(line):
    """The undisturbed run that the others are compared with: one engine, two ranks."""
    return line.finish("two-ranks")


def test_a_run_ends_done_with_every_sample_accounted_for_and_nothing_left(line, reference):
    assert [step["step"] for step in reference] == list(range(1, 49))
    assert line.left() == []
    code, state = line.status("two-ranks")
    assert (code, state["state"], state["step"], state["total_steps"]) == (0, "done", 48, 48)
    assert state["store"]["num_evicted"] == 0
    counts = state["ledger"]
    assert counts["trained"] > 0
    assert {key: counts[key] for key in ("planned", "leased", "ready", "taken", "failed")} == dict.fromkeys(
        ("planned", "leased", "ready", "taken", "failed"), 0
    )
    rounds = [json.loads(text) for text in (line.root / "runs/two-ranks/validation.jsonl").read_text().splitlines()]
    assert [entry["step"] for entry in rounds] == [0, 24, 48]
    assert rounds[-1]["loss"] < rounds[0]["loss"]


def test_two_engines_and_one_rank_train_the_same(line, reference):
    steps = line.finish("two-engines", "engines.count.start=2", "trainers.ranks.start=1")
    assert {step["num_ranks"] for step in steps} == {1}
    assert_same_training(steps, reference)
    state = json.loads((line.root / "runs/two-engines/state.json").read_text())
    assert len(state["pools"]["inference"]["members"]) == 2


def test_a_sharded_run_resumed_from_the_checkpoint_before_a_damaged_one_trains_the_same(line, reference):
    started = line.launch("resumed", "trainers.sharding=fsdp", options=("--detach",))
    assert started.returncode == 0, started.stderr
    line.wait_for("resumed", 10)
    stopped = line.run("stop", "resumed", "--wait")
    assert "is stopped at step" in stopped.stdout, stopped.stdout + stopped.stderr
    assert line.left() == []
    last_step = line.steps("resumed")[-1]["step"]
    assert 10 <= last_step < 48
    newest = line.root / "runs/resumed/checkpoints/latest"
    assert int(newest.resolve().name.removeprefix("step-")) == last_step
    damaged = max(newest.resolve().glob("*.distcp"), key=lambda file: file.stat().st_size)
    with damaged.open("r+b") as file:
        file.seek(damaged.stat().st_size // 2)
        file.write(b"not what was written")
    steps = line.finish("resumed", "trainers.sharding=fsdp", options=("--resume",))
    assert_same_training(steps, reference)
    events = line.run("events", "resumed").stdout
    assert f"the checkpoint of step {last_step} is not used" in events
    assert "resumed_step" in (line.root / "runs/resumed/events.jsonl").read_text()
    _, state = line.status("resumed")
    assert str(last_step) in state["faults"][0]


def test_the_export_loads_back(line, reference):
    exported = line.run("export", "two-ranks", "--no-vllm", "--json")
    assert exported.returncode == 0, exported.stderr
    directory = json.loads(exported.stdout)["path"]
    assert os.path.exists(os.path.join(directory, "config.json"))


def test_an_engine_that_does_not_start_ends_the_launch_with_its_logs_last_lines(line):
    failed = line.launch("broken-engine", "engines.vllm.kv_cache_dtype=nonsense")
    assert failed.returncode == 1
    assert "engine-1.0" in failed.stderr
    assert "logs/engine-1.0" in failed.stderr
    assert "nonsense" in failed.stderr
    assert line.left() == []
    assert line.status("broken-engine")[0] == 1


def test_a_run_whose_cluster_died_is_told_truthfully_and_cleared_up(line):
    never_ending = ("run.max_steps=4000", f"engines.entry={STAND_IN}")
    assert line.launch("orphan", *never_ending, options=("--detach",)).returncode == 0
    line.wait_for("orphan", 2)
    facts = json.loads((line.root / "runs/orphan/cluster.json").read_text())
    os.kill(facts["keeper_pid"], signal.SIGKILL)
    deadline_s = time.monotonic() + GONE_S
    while (seen := line.status("orphan"))[1]["state"] != "lost":
        assert time.monotonic() < deadline_s, seen
    assert seen[0] == 5
    assert "does not answer" in seen[1]["faults"][-1]
    assert line.run("stop", "orphan", "--now").returncode == 0
    assert line.left() == []
