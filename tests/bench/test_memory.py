"""A rank's memory against the plan: the terms, the peaks by stretches of steps, and what the kernel tells."""

import json
import os
from types import SimpleNamespace

import numpy as np
import pytest

from dspark_train.bench import memory
from dspark_train.bench.memory import MORE_STEPS, STRETCH_STEPS, Seen, Stretches
from dspark_train.bench.resident import reset_peak, resident
from dspark_train.errors import StartError, UsageError
from dspark_train.plan.run_layout import RunLayout

MIB = 2**20
RESOLVED = SimpleNamespace(
    device="cpu", mode="online", segment_bytes=100, topology=SimpleNamespace(store=SimpleNamespace(high_mark_frac=0.9))
)
PLAN = SimpleNamespace(capacity=SimpleNamespace(ring_bytes=300, draft_state_bytes=700))
BARE = {"rss_bytes": 500, "file_bytes": 200}


def test_the_terms_are_taken_from_the_peak_and_a_checkpoint_stands_beside():
    seen = Seen({"draft_built": 800, "group_formed": 1200}, Stretches([1700, 1640, 1690], rest=1990), file_bytes=230)
    made = memory.figures(RESOLVED, PLAN, BARE, seen)
    assert (made["steps"], made["peak_bytes"], made["segment_bytes"]) == (3 * STRETCH_STEPS, 1700, 90)
    assert (made["rest_bytes"], made["code_paged_in_bytes"]) == (110, 30)
    assert (made["own_over_planned"], made["own_over_planned_at_a_checkpoint"]) == (1.11, 1.4)
    assert made["growth"] == pytest.approx(1690 / 1640 - 1)
    assert made["draft_built_bytes"] == 800


def test_a_run_that_ended_too_soon_gives_no_figures():
    with pytest.raises(StartError, match="too short"):
        memory.figures(RESOLVED, PLAN, BARE, Seen())


def test_each_stretch_of_steps_has_its_own_peak():
    stretches, seen = Stretches(), [(0, 10), (20, 30), (49, 25), (51, 28), (99, 27), (100, 26), (104, 40)]
    resets = [stretches.look(num_done, peak) for num_done, peak in seen]
    assert resets == [False, False, False, True, False, True, False]
    assert (stretches.peaks, stretches.rest) == ([30, 27], 40)


def test_whole_stretches_are_trained_and_some_steps_more():
    assert memory.checked_steps(RESOLVED, 120) == 2 * STRETCH_STEPS + MORE_STEPS
    with pytest.raises(UsageError, match="--steps 100"):
        memory.checked_steps(RESOLVED, 99)
    for other in ({"device": "cuda"}, {"mode": "disk"}):
        with pytest.raises(UsageError, match="on CPU"):
            memory.checked_steps(SimpleNamespace(**{**vars(RESOLVED), **other}), 1000)


def test_phases_are_told_by_the_journal(tmp_path):
    layout, seen = RunLayout(tmp_path), Seen()
    assert memory._note_phases(layout, seen, 0) == 0
    events = [{"kind": "run.starting"}, {"kind": "rank.ready", "pid": os.getpid()}]
    layout.events.write_text("".join(json.dumps(event) + "\n" for event in events))
    assert memory._note_phases(layout, seen, 0) == os.getpid()
    assert list(seen.phases) == ["draft_built"]
    layout.events.write_text("".join(json.dumps(event) + "\n" for event in [*events, {"kind": "group.formed"}]))
    memory._note_phases(layout, seen, os.getpid())
    assert list(seen.phases) == ["draft_built", "group_formed"]


def test_a_peak_outlives_its_memory_until_it_is_reset():
    taken = np.ones(64 * MIB, dtype=np.uint8)
    high = resident(os.getpid())
    del taken
    low = resident(os.getpid())
    assert low.peak_bytes > high.rss_bytes - MIB > low.rss_bytes + 32 * MIB
    reset_peak(os.getpid())
    assert resident(os.getpid()).peak_bytes < high.rss_bytes - 32 * MIB
    with pytest.raises(OSError, match=r".*"):
        resident(2**22 + 1)
