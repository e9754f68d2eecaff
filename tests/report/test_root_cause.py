"""Who failed first, and what its log says, before everything that followed from it."""

from dspark_train.engine.server import root_cause as telling_line
from dspark_train.report.log_merge import at_s
from dspark_train.report.root_cause import root_cause


def event(at, kind, who, text):
    return {"at": f"2026-01-01T12:{at}.000Z", "kind": kind, "who": who, "text": text}


AVALANCHE = [
    event("00:00", "engine.dead", "engine-2.0", "engine-2 died: an old story, long healed"),
    event("30:00", "run.phase", "controller", "training"),
    event("30:01", "engine.dead", "engine-1.0", "engine-1 died: its process ended with code 1"),
    event("30:05", "rank.failed", "rank-0", "rank-0 failed: no samples"),
    event("30:06", "rank.dead", "rank-1", "rank-1 died: connection reset"),
    event("30:09", "run.failed", "controller", "no engine is left"),
]


def test_the_first_failure_of_the_last_burst_is_the_cause_and_its_log_says_why(tmp_path):
    log = tmp_path / "engine-1.0.log"
    log.write_text(
        "loading\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB\nRuntimeError: later\n"
    )
    found = root_cause(AVALANCHE, {"engine-1.0": log}, telling_line)
    assert found == "engine-1.0: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB"


def test_without_a_log_the_journal_says_why():
    assert root_cause(AVALANCHE, {}, telling_line) == ("engine-1 died: its process ended with code 1")


def test_a_start_that_failed_names_its_member(tmp_path):
    log = tmp_path / "engine-1.0.log"
    log.write_text("ValueError: no such model\n")
    events = [event("00:00", "run.failed", "controller", "engine-1.0 did not start: exited with code 1\nlast lines")]
    assert root_cause(events, {"engine-1.0": log}, telling_line) == "engine-1.0: ValueError: no such model"


def test_where_nothing_failed_there_is_no_cause():
    assert root_cause(AVALANCHE[1:2], {}, telling_line) == ""


def test_times_are_read_as_the_components_write_them():
    assert at_s("2026-11-30T04:38:05Z x", 2026) == 1796013485.0
    local_s = at_s("2026-11-30 04:38:15,150 INFO x", 2026)
    assert at_s("I1130 04:38:15.150000 123 x", 2026) == local_s
    assert at_s("(EngineCore pid=7) 2026-11-30 04:38:15.15 x", 2026) == local_s
    assert at_s("no time", 2026) is None
    assert at_s("2026-99-30 04:38:15", 2026) is None
