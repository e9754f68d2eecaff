"""Over which steps a run is timed, and how its members are found and kept on their cores."""

import json
import os
import subprocess
import sys
import time

import pytest

from dspark_train.bench import timed_run
from dspark_train.bench.timed_run import MIN_TIMED_STEPS, NUM_WARM_UP_STEPS, Window
from dspark_train.errors import StartError
from dspark_train.plan.run_layout import RunLayout


def test_the_window_begins_a_few_steps_after_all_sides_are_on_their_cores():
    window = Window(40)
    window.look(5, 10.0)
    window.look(7, 12.0)
    assert window.began is None
    window.look(9, 14.0)
    window.look(11, 16.0)
    assert window.began == (9, 14.0)
    assert window.tokens_per_s([1000] * 9 + [10] * 31 + [1000], 24.0) == 31.0


def test_a_run_that_leaves_too_few_steps_is_refused():
    window = Window(40)
    window.look(40 - MIN_TIMED_STEPS - NUM_WARM_UP_STEPS, 10.0)
    window.look(40 - MIN_TIMED_STEPS, 12.0)
    assert window.began is not None
    late = Window(40)
    late.look(40 - MIN_TIMED_STEPS - NUM_WARM_UP_STEPS + 1, 10.0)
    with pytest.raises(StartError, match="raise --steps"):
        late.look(40 - MIN_TIMED_STEPS + 1, 12.0)
    with pytest.raises(StartError, match="raise --steps"):
        Window(40).tokens_per_s([10] * 40, 24.0)


def test_a_step_ended_when_its_line_was_written(tmp_path):
    path = tmp_path / "metrics.jsonl"
    assert timed_run._steps(path) == (0.0, [])
    path.write_text(json.dumps({"step": 1}) + "\n")
    os.utime(path, (100.0, 200.0))
    assert timed_run._steps(path) == (200.0, [b'{"step": 1}'])


@pytest.mark.skipif(not {0, 1} <= os.sched_getaffinity(0), reason="needs cores 0 and 1")
def test_members_are_found_by_the_log_that_they_print_to_and_kept_on_their_cores(tmp_path):
    layout = RunLayout(tmp_path)
    layout.logs.mkdir()
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()'])"
    members = []
    try:
        for name in ("engine-1.0", "rank-0", "ledger"):
            with layout.log(name).open("wb") as log:
                member = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=log)
            members.append(member)
            if name == "engine-1.0":
                assert not timed_run._pin_members(layout)
        before = os.sched_getaffinity(members[2].pid)
        deadline_s = time.monotonic() + 10
        while not timed_run._pin_members(layout):
            assert time.monotonic() < deadline_s
        cores = [os.sched_getaffinity(member.pid) for member in members]
        assert cores == [{timed_run.CORES["engine"]}, {timed_run.CORES["rank"]}, before]
    finally:
        for member in members:
            member.communicate(b"\n", timeout=10)
