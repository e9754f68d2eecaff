import json
import subprocess
import sys

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

from dspark_train.controller.figures import tag
from dspark_train.controller.step_log import StepLines, StepLog
from dspark_train.plan.run_layout import RunLayout


def written(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def scalars(layout):
    """(step, tag) -> value over all event files, as TensorBoard reads them: a START purges what is not before it."""
    found = {}
    for file in sorted(layout.tensorboard.iterdir()):
        for event in EventFileLoader(str(file)).Load():
            if event.HasField("session_log"):
                found = {key: value for key, value in found.items() if key[0] < event.step}
            for value in event.summary.value:
                found[event.step, value.tag] = (
                    value.tensor.float_val[0] if value.HasField("tensor") else value.simple_value
                )
    return found


def test_a_line_is_on_disk_before_append_returns(tmp_path):
    lines = StepLines(tmp_path / "m.jsonl", 0)
    lines.append(1, {"loss": 2.5, "data_hash": "ab", "step": 99})
    assert written(tmp_path / "m.jsonl") == [{"step": 1, "loss": 2.5, "data_hash": "ab"}]
    assert lines.last == {"step": 1, "loss": 2.5, "data_hash": "ab"}


def test_numbers_of_numpy_are_written_and_what_is_not_finite_is_null(tmp_path):
    StepLines(tmp_path / "m.jsonl", 0).append(1, {"a": np.float32(0.5), "b": np.int64(3), "c": float("nan")})
    assert written(tmp_path / "m.jsonl") == [{"step": 1, "a": 0.5, "b": 3, "c": None}]


@pytest.mark.parametrize(("last_step", "kept"), [(0, []), (2, [1, 2]), (3, [1, 2, 3]), (9, [1, 2, 3])])
def test_lines_after_the_step_resumed_from_are_dropped(tmp_path, last_step, kept):
    path = tmp_path / "m.jsonl"
    path.write_text("".join(f'{{"step": {step}}}\n' for step in (1, 2, 3)))
    lines = StepLines(path, last_step)
    assert (lines.num_dropped, lines.steps) == (3 - len(kept), kept)
    assert [line["step"] for line in written(path)] == kept
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    "torn", ['{"step": 3, "lo', '{"step": 3}\n{"st', '{"step": 3}', '[3]\n{"step": "3"}\n', "\n\n"]
)
def test_a_torn_last_line_is_dropped_and_the_next_one_stands_alone(tmp_path, torn):
    path = tmp_path / "m.jsonl"
    path.write_text('{"step": 1}\n{"step": 2}\n' + torn)
    lines = StepLines(path, 2)
    lines.append(3, {"loss": 1.0})
    assert written(path) == [{"step": 1}, {"step": 2}, {"step": 3, "loss": 1.0}]


def test_a_whole_last_line_without_its_newline_is_kept(tmp_path):
    path = tmp_path / "m.jsonl"
    path.write_text('{"step": 1}')
    lines = StepLines(path, 1)
    assert lines.num_dropped == 0
    lines.append(2, {})
    assert written(path) == [{"step": 1}, {"step": 2}]


def test_steps_and_rounds_go_to_their_files_and_to_tensorboard(tmp_path):
    layout = RunLayout(tmp_path / "run")
    log = StepLog(layout, 0)
    log.append("validate", 0, {"loss": 9.0, "accept_len": 1.0})
    log.append("train", 1, {"loss": 8.0, "lr": 0.5, "tokens": 100, "step_s": 2.0, "epoch": 0, "data_hash": "ab"})
    log.close()
    log.close()
    assert [line["step"] for line in written(layout.metrics)] == [1]
    assert written(layout.validation) == [{"step": 0, "loss": 9.0, "accept_len": 1.0}]
    assert scalars(layout) == {
        (0, "val/loss"): 9.0,
        (0, "val/accept_len"): 1.0,
        (1, "train/loss"): 8.0,
        (1, "lr"): 0.5,
        (1, "throughput/tokens"): 100.0,
        (1, "throughput/step_s"): 2.0,
        (1, "throughput/tokens_per_s"): 50.0,
        (1, "run/epoch"): 0.0,
    }


def test_tensorboard_forgets_what_came_after_the_step_resumed_from(tmp_path):
    layout = RunLayout(tmp_path)
    log = StepLog(layout, 0)
    for step in (1, 2, 3):
        log.append("train", step, {"loss": float(step)})
    log.close()
    log = StepLog(layout, 1)
    log.append("train", 2, {"loss": 20.0})
    log.close()
    assert scalars(layout) == {(1, "train/loss"): 1.0, (2, "train/loss"): 20.0}


def test_steps_missing_before_the_resume_are_told(tmp_path, caplog):
    layout = RunLayout(tmp_path)
    layout.metrics.write_text('{"step": 1}\n')
    StepLog(layout, 3).close()
    assert "does not hold each of the steps 1 .. 3 once" in caplog.text


@pytest.mark.parametrize(
    ("kind", "key", "expected"),
    [
        ("train", "loss", "train/loss"),
        ("train", "position_0_acc", "train/position_0_acc"),
        ("validate", "accept_len", "val/accept_len"),
        ("train", "lr", "lr"),
        ("train", "lr_muon", "lr_muon"),
        ("train", "wait_s", "throughput/wait_s"),
        ("train", "num_ranks", "run/num_ranks"),
    ],
)
def test_tags(kind, key, expected):
    assert tag(kind, key) == expected


def test_neither_torch_nor_tensorflow_is_imported():
    code = (
        "import sys, dspark_train.controller.ledger_service; "
        "sys.exit(' '.join({'torch', 'tensorflow', 'ray', 'vllm'} & set(sys.modules)) or 0)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert found.returncode == 0, found.stderr
