"""The figures at the end come from the run's own files."""

import json

from dspark_train.plan.run_layout import RunLayout
from dspark_train.report.state import LedgerState, PoolState, RunState
from dspark_train.report.summary import summarise, summary_lines


def write_lines(path, entries):
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries))


def test_the_summary_compares_the_first_and_the_last_validation(tmp_path):
    layout = RunLayout(tmp_path)
    write_lines(layout.metrics, [{"step": k, "tokens": 1000, "step_s": 1.5, "wait_s": 0.5} for k in (1, 2)])
    rounds = [{"step": 0, "loss": 8.0, "accept_len": 1.0}, {"step": 2, "loss": 4.0, "accept_len": 1.5}]
    write_lines(layout.validation, rounds)
    summary = summarise(layout)
    assert (summary.steps, summary.tokens) == (2, 2000)
    assert summary.loss.relative == -0.5
    pools = {"inference": PoolState(desired=1), "trainers": PoolState(desired=1)}
    state = RunState(run="a1", state="done", step=2, total_steps=2, pools=pools, ledger=LedgerState(trained=12))
    text = "\n".join(summary_lines(state, summary, layout))
    assert "2 steps, 2,000 tokens in 3 s (667 tokens/s; waited for data 33%)" in text
    assert "validation loss 8.000 -> 4.000 (-50%)" in text
    assert "acceptance length 1.00 -> 1.50" in text


def test_a_run_without_steps_has_a_summary_too(tmp_path):
    summary = summarise(RunLayout(tmp_path))
    assert summary.steps == 0
    assert summary.loss is None
