"""The endpoint's names and units; promtool, where it is installed, has the last word."""

import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from dspark_train.report.metrics import Totals, exposition
from dspark_train.report.state import CheckpointState, EngineLoad, LedgerState, MemberState, PoolState, RunState

NOW_S = 1_800_000_000.0
PROMTOOL = shutil.which("promtool", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")


def samples(state, totals=None):
    text = exposition(state, totals or Totals(), NOW_S).decode()
    return {
        (one.name, *sorted(one.labels.values())): one.value
        for family in text_string_to_metric_families(text)
        for one in family.samples
    }


def a_state(**changes):
    engine = MemberState(name="engine-1.0", node="n", state="dead", tokens_per_s=5.0)
    pools = {
        "inference": PoolState(desired=2, ready=1, members=[engine], blocked_frac=0.25),
        "trainers": PoolState(desired=1),
    }
    return RunState(**{"run": 'a"1', "state": "running", "step": 7, "pools": pools} | changes)


def test_each_figure_is_told_with_its_unit():
    seen = samples(
        a_state(
            loss=1.5,
            checkpoint=CheckpointState(step=5, age_s=60),
            ledger=LedgerState(ready=3, trained=9),
            transaction={"state": "running"},
            faults=["one"],
        ),
        Totals(num_events=Counter({"engine.dead": 2}), trained_tokens=100, wait_s=2.5),
    )
    assert seen["dspark_step",] == 7
    assert seen["dspark_loss",] == 1.5
    assert seen["dspark_pool_ready_members", "inference"] == 1
    assert seen["dspark_pool_blocked_ratio", "inference"] == 0.25
    assert seen["dspark_member_state", "dead", "engine-1.0", "inference"] == 1
    assert seen["dspark_member_state", "engine-1.0", "inference", "ready"] == 0
    assert seen["dspark_checkpoint_timestamp_seconds",] == NOW_S - 60
    assert seen["dspark_ledger_samples", "ready"] == 3
    assert seen["dspark_ledger_trained_samples_total",] == 9
    assert seen["dspark_events_total", "engine.dead"] == 2
    assert seen["dspark_trained_tokens_total",] == 100
    assert seen["dspark_step_wait_seconds_total",] == 2.5
    assert seen["dspark_scaling_in_progress",] == 1
    assert seen["dspark_run_state", "running"] == 1
    assert seen["dspark_run_state", "failed"] == 0


def a_load(**changes):
    figures = {"running": 2, "waiting": 5, "finished": 90, "prompt_tokens": 4096, "kv_cache_frac": 0.25}
    return EngineLoad(leased=7, lost=1, **figures | changes)


def with_load(load):
    engine = MemberState(name="engine-1.0", node="n", state="ready", load=load)
    return a_state(pools={"inference": PoolState(desired=1, members=[engine]), "trainers": PoolState(desired=1)})


def test_each_engine_tells_its_load():
    seen = samples(with_load(a_load()))
    of_engine = {name.removeprefix("dspark_engine_"): value for (name, *_), value in seen.items() if "engine_" in name}
    assert of_engine == {
        "leased_samples": 7,
        "running_requests": 2,
        "waiting_requests": 5,
        "kv_cache_used_ratio": 0.25,
        "lost_samples_total": 1,
        "finished_requests_total": 90,
        "prompt_tokens_total": 4096,
    }
    assert seen["dspark_engine_waiting_requests", "engine-1.0"] == 5


def test_what_vllm_does_not_tell_of_an_engine_is_left_out():
    names = {name for name, *_ in samples(with_load(EngineLoad(leased=3))) if name.startswith("dspark_engine_")}
    assert names == {"dspark_engine_leased_samples", "dspark_engine_lost_samples_total"}


def test_what_is_not_known_yet_is_left_out_rather_than_zero():
    names = {name for name, *_ in samples(a_state())}
    assert not names & {"dspark_loss", "dspark_checkpoint_step", "dspark_pool_service_tokens_per_second"}


@pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed: Debian's package prometheus")
def test_promtool_finds_nothing_to_say_about_the_endpoint():
    text = exposition(with_load(a_load()), Totals(num_events=Counter({"run.phase": 1})), NOW_S)
    done = subprocess.run([PROMTOOL, "check", "metrics"], input=text, capture_output=True, timeout=30)
    assert (done.returncode, done.stdout + done.stderr) == (0, b"")
