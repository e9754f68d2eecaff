"""What a person reads: widths, units, pace."""

from rich.console import Console

from dspark_train.report.pace import Left
from dspark_train.report.state import MemberState, PoolState, RunState
from dspark_train.report.terminal import bytes_text, duration_text, left_text, progress_line, render, time_left


def a_state(**changes):
    engine = MemberState(name="engine-1.0", node="10.0.0.1", pid=4711, state="ready", tokens_per_s=2500.0)
    pools = {
        "inference": PoolState(desired=1, ready=1, tokens_per_s=2500.0, blocked_frac=0.5, members=[engine]),
        "trainers": PoolState(desired=2),
    }
    values = {"run": "a1", "state": "running", "step": 20, "total_steps": 60, "loss": 2.5, "pools": pools}
    return RunState(**(values | changes))


def test_bytes_and_durations_have_units():
    assert bytes_text(0) == "0 B"
    assert bytes_text(1536) == "1.5 KiB"
    assert bytes_text(5.25 * 2**30) == "5.2 GiB"
    assert duration_text(59) == "59 s"
    assert duration_text(61) == "1 min 01 s"
    assert duration_text(3725) == "1 h 02 min"


def test_the_whole_view_fits_80_columns():
    console = Console(width=80, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(render(a_state(faults=["engine-2.0 died: " + "x" * 200], bottleneck="inference"), Left(3600, 7260)))
    lines = console.export_text().splitlines()
    assert max(map(len, lines)) <= 80
    assert any("engine-1.0" in line and "ready" in line for line in lines)


def test_the_time_left_is_a_range_where_paces_differ_and_unknown_without_one():
    assert left_text(time_left(a_state(), 2.0)) == "about 1 min 20 s left"
    assert left_text(time_left(a_state(), 2.0, 3.0)) == "1 min 20 s to 2 min 00 s left"
    assert time_left(a_state(), None) is None
    assert time_left(a_state(state="done"), 2.0) is None
    assert left_text(None) == ""


def test_the_root_cause_of_a_failure_stands_above_everything_else():
    console = Console(width=80, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(render(a_state(state="failed", reason="x", root_cause="engine-1.0: out of memory")))
    assert console.export_text().splitlines()[1].startswith("root cause: engine-1.0: out of memory")


def test_a_log_line_says_step_loss_and_time_left():
    line = progress_line(a_state(), Left(120, 120))
    assert line.startswith("step 20/60")
    assert "loss 2.500" in line
    assert line.endswith("about 2 min 00 s left")
