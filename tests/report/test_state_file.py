"""The truth about a run, whatever is left of it."""

import os
import socket
from datetime import UTC, datetime, timedelta

from dspark_train.plan.run_layout import RunLayout
from dspark_train.report import state_file
from dspark_train.report.state import ControllerState, MemberState, PoolState, RunState, exit_code

GONE_PID = 2**22 - 3


def a_state(phase="running", *, members=(), url="http://127.0.0.1:1", faults=()):
    pools = {
        "inference": PoolState(desired=len(members), ready=len(members), members=list(members)),
        "trainers": PoolState(desired=0),
    }
    controller = ControllerState(url=url, pid=GONE_PID, host=socket.gethostname())
    return RunState(
        run="a1",
        state=phase,
        step=7,
        total_steps=60,
        pools=pools,
        controller=controller,
        faults=list(faults),
        written_at="2026-01-01T00:00:00.000+00:00",
    )


def test_a_written_state_reads_back_equal(tmp_path):
    layout = RunLayout(tmp_path)
    state_file.write(layout.state, a_state("done"))
    assert state_file.read(layout.state) == a_state("done")


def test_no_state_reads_as_none(tmp_path):
    assert state_file.current(RunLayout(tmp_path)) is None


def test_a_finished_run_is_told_from_its_file_alone(tmp_path):
    layout = RunLayout(tmp_path)
    state_file.write(layout.state, a_state("done"))
    assert state_file.current(layout).state == "done"


def test_a_silent_controller_makes_the_run_lost_and_dead_members_dead(tmp_path):
    layout = RunLayout(tmp_path)
    layout.token.write_text("t")
    members = [
        MemberState(name="engine-1.0", node="127.0.0.1", pid=os.getpid(), state="ready"),
        MemberState(name="engine-2.0", node="127.0.0.1", pid=GONE_PID, state="ready"),
        MemberState(name="engine-3.0", node="10.9.9.9", pid=GONE_PID, state="ready"),
    ]
    state_file.write(layout.state, a_state(members=members))
    seen = state_file.current(layout)
    assert seen.state == "lost"
    assert [m.state for m in seen.pools["inference"].members] == ["ready", "dead", "ready"]
    assert seen.pools["inference"].ready == 2
    assert "does not answer" in seen.faults[-1]
    assert "running at step 7" in seen.faults[-1]


def test_a_controller_that_wrote_a_moment_ago_and_still_runs_is_not_called_lost(tmp_path):
    layout = RunLayout(tmp_path)
    controller = ControllerState(url="http://127.0.0.1:1", pid=os.getpid(), host=socket.gethostname())
    fresh = datetime.now(UTC).isoformat()
    state_file.write(layout.state, a_state().model_copy(update={"controller": controller, "written_at": fresh}))
    assert state_file.current(layout).state == "running"


def test_a_controller_that_is_late_is_told_as_a_fault(tmp_path):
    layout = RunLayout(tmp_path)
    controller = ControllerState(url="http://127.0.0.1:1", pid=os.getpid(), host=socket.gethostname())
    written = (datetime.now(UTC) - timedelta(seconds=60)).isoformat()
    state_file.write(layout.state, a_state().model_copy(update={"controller": controller, "written_at": written}))
    seen = state_file.current(layout)
    assert seen.state == "running"
    assert "said nothing for 60 s" in seen.faults[0]
    assert exit_code(seen) == 4


def test_a_controller_whose_process_is_gone_is_lost_at_once(tmp_path):
    layout = RunLayout(tmp_path)
    fresh = datetime.now(UTC).isoformat()
    state_file.write(layout.state, a_state().model_copy(update={"written_at": fresh}))
    assert state_file.current(layout).state == "lost"


def test_exit_codes_tell_health():
    ready = MemberState(name="e", node="n", state="ready")
    assert exit_code(a_state("done")) == 0
    assert exit_code(a_state(members=[ready])) == 0
    assert exit_code(a_state("failed")) == 1
    assert exit_code(a_state(members=[ready], faults=["engine-1.0 died"])) == 4
    assert exit_code(a_state("lost")) == 5
    short = a_state(members=[ready])
    short.pools["inference"].desired = 2
    assert exit_code(short) == 4


def test_status_json_has_the_documented_keys():
    keys = set(a_state().model_dump(by_alias=True))
    assert keys >= {
        "run", "state", "mode", "step", "total_steps", "epoch", "loss", "accept_len", "tokens_per_s", "pools", "store",
        "ledger", "bottleneck", "last_decision", "checkpoint", "generation", "faults",
    }  # fmt: skip
    pool = a_state().model_dump(by_alias=True)["pools"]["inference"]
    assert set(pool) >= {
        "desired", "ready", "pending", "draining", "tokens_per_s", "service_tokens_per_s", "blocked_frac", "members",
    }  # fmt: skip
