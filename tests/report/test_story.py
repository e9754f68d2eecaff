"""The report's facts: what changed, what time was lost to what, what is shown of it, and nothing secret."""

import json

import pytest

from dspark_train.plan.run_layout import RunLayout
from dspark_train.report import state_file
from dspark_train.report.document import lost_rows, without_secrets, write_report
from dspark_train.report.history import History
from dspark_train.report.state import PoolState, RunState
from dspark_train.report.story import read_story, time_lost


def event(second, kind, text="", who="controller", **data):
    at = f"2026-01-01T12:{second // 60:02}:{second % 60:02}.000Z"
    return {"at": at, "kind": kind, "who": who, "text": text, **data}


EVENTS = [
    event(0, "run.starting"),
    event(20, "run.flowing"),
    event(25, "balance.seen", "hold 1+1: learning", who="balance"),
    event(30, "balance.seen", "move 1+1 -> 2+1: more", who="balance"),
    event(30, "scale.begun", "t1: inference 1 -> 2", id="t1"),
    event(35, "scale.done", "t1: inference 1 -> 2 done", id="t1", pause_s=0.0),
    event(40, "scale.begun", "t2: trainers 1 -> 9", id="t2"),
    event(50, "scale.rolled_back", "t2: trainers 1 -> 9 rolled back: rank-3 did not start", id="t2"),
    event(60, "rank.dead", "rank-0 died: <b>killed</b>", who="rank-0"),
    event(64, "group.formed", "2 ranks", pause_s=1.5),
    event(100, "run.done"),
]
STEPS = [{"step": k + 1, "tokens": 500, "step_s": 3.0, "wait_s": 1.0, "loss": 5.0 - k / 10} for k in range(20)]


@pytest.fixture
def layout(tmp_path):
    made = RunLayout(tmp_path / "a1")
    made.root.mkdir()
    pools = {"inference": PoolState(desired=2, ready=2), "trainers": PoolState(desired=1)}
    state = RunState(run="a1", state="done", step=20, total_steps=20, pools=pools)
    state_file.write(made.state, state)
    made.metrics.write_text("".join(json.dumps(step) + "\n" for step in STEPS))
    rounds = [
        {"step": k, "loss": 5.0, "accept_len": 1.0 + k, "position_0_acc": 0.1 + k / 2, "position_10_acc": 0.2}
        for k in (0, 1)
    ]
    made.validation.write_text("".join(json.dumps(one) + "\n" for one in rounds))
    history = History()
    for second in range(100):
        history.add(1_767_268_800.0 + second, state)
    made.history.write_text(history.to_json())
    made.topology.write_text("name: a1\nengines:\n  env:\n    HF_TOKEN: hf_verysecret\n    OMP_NUM_THREADS: 1\n")
    return made


def test_every_second_of_the_run_is_accounted_for():
    lost = time_lost(EVENTS, STEPS)
    assert lost.wall_s == 100
    assert (lost.starting_s, lost.waiting_s, lost.busy_s, lost.pausing_s, lost.mending_s) == (20, 20, 40, 1.5, 4)
    assert lost.other_s == pytest.approx(100 - 20 - 60 - 1.5 - 4)
    assert sum(share for _, _, share, _ in lost_rows(lost)) == pytest.approx(1.0)


def test_a_run_that_was_resumed_took_as_long_as_its_lives():
    again = [event(1000, "run.starting"), event(1005, "run.flowing"), event(1030, "run.done")]
    lost = time_lost([*EVENTS, *again], STEPS)
    assert lost.wall_s == 130
    assert lost.starting_s == 25


def test_each_change_is_told_with_its_outcome(layout):
    story = read_story(layout, EVENTS)
    assert [(c.ident, c.text, c.why, c.outcome, c.took_s, c.pause_s) for c in story.changes] == [
        ("t1", "inference 1 -> 2", "move 1+1 -> 2+1: more", "done", 5.0, 0.0),
        ("t2", "trainers 1 -> 9", "by hand", "rolled back: rank-3 did not start", 10.0, None),
    ]
    assert [one["text"] for one in story.decisions] == ["move 1+1 -> 2+1: more"]
    assert [one["kind"] for one in story.faults] == ["scale.rolled_back", "rank.dead"]
    assert story.acceptance == [(0, 0.1, 0.6), (10, 0.2, 0.2)]
    assert story.num_tokens == 10_000


def test_the_report_is_one_file_that_asks_nobody_and_tells_no_secret(layout):
    html, png = write_report(layout, read_story(layout, EVENTS))
    text = html.read_text()
    assert "src=" not in text
    assert "<link" not in text
    assert "<script" not in text
    assert "url(http" not in text
    assert "hf_verysecret" not in text
    assert "<b>killed</b>" not in text, "what comes from outside is escaped"
    assert text.count("<svg") >= 7
    assert "rank-3 did not start" in text
    assert png.read_bytes().startswith(b"\x89PNG")


def test_the_report_tells_what_eval_measured_by_domain(layout):
    figures = {"macro_accept_len": 1.5, "num_tokens": 9, "domains": {"math": {"accept_len": 1.625, "num_tokens": 9}}}
    found = {"method": "reference", "step": 4, "num_drafted": 8, **figures}
    layout.evaluations.mkdir()
    (layout.evaluations / "reference.json").write_text(json.dumps(found))
    (html, _) = write_report(layout, read_story(layout, EVENTS))
    assert '<td>math</td><td class="num">1.62</td><td class="num">9</td>' in html.read_text()
    served = {"macro_accept_len": 1.25, "domains": {"math": {"accept_len": 1.25, "num_tokens": 9}}}
    (layout.evaluations / "reference.json").write_text(json.dumps(found | {"method": "both", "served": served}))
    (html, _) = write_report(layout, read_story(layout, EVENTS))
    assert '<td>math</td><td class="num">1.62</td><td class="num">1.25</td><td class="num">9</td>' in html.read_text()


def test_a_run_that_never_trained_has_a_report_too(tmp_path):
    layout = RunLayout(tmp_path)
    assert read_story(layout, []) is None
    pools = {"inference": PoolState(desired=1), "trainers": PoolState(desired=1)}
    state = RunState(run="a1", state="failed", pools=pools, root_cause="engine-1.0: no such model")
    state_file.write(layout.state, state)
    assert write_report(layout, read_story(layout, EVENTS[:1])) == [layout.report]
    assert "root cause: engine-1.0: no such model" in layout.report.read_text()


def test_only_the_values_of_secrets_are_hidden():
    assert without_secrets("a: b\n  api_key: x y\n  - password: z\ntokens: 3") == (
        "a: b\n  api_key: ***\n  - password: ***\ntokens: 3"
    )
