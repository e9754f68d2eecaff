"""A run's checkpoint as a Hugging Face directory: loads back, is what vLLM reads, falls back, spoils nothing."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml

from dspark_train.cli.app import run as command_line
from dspark_train.data.target_identity import read_identity
from dspark_train.engine.vllm_check import check
from dspark_train.errors import CheckpointError, PairingError, UsageError
from dspark_train.plan.run_layout import RunLayout
from dspark_train.topology.resolve import Resolved
from dspark_train.trainer.checkpoint_files import step_dir
from dspark_train.trainer.drafts import load_export
from dspark_train.trainer.export import export_checkpoint, verify_export
from tests.trainer import recorded
from tests.trainer.recorded import Hub, Join, make_run, schedule_of

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def finished_run(tiny_target, recorded_data, tmp_path_factory) -> Path:
    """A run of six steps with checkpoints of steps 3 and 6."""
    root = make_run(tmp_path_factory.mktemp("runs") / "finished", tiny_target, recorded_data)
    (outcome,) = recorded.train(root, Hub(schedule_of(root)), [Join(1)])
    assert outcome.state == "done", outcome
    return root


def resolved_of(run: Path) -> Resolved:
    return Resolved.model_validate_json((run / "resolved.json").read_text())


def test_export_writes_a_directory_that_loads_back_and_says_what_it_is(finished_run, tmp_path, capsys):
    argv = ["export", str(finished_run), "--out", str(tmp_path / "draft"), "--no-vllm", "--json"]
    assert command_line(argv) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["step"] == 6
    assert (told["algorithm"], told["dtype"], told["num_speculative_tokens"]) == ("dspark", "float32", 4)
    assert told["rejected"] == []
    assert verify_export(tmp_path / "draft").num_weights == told["num_weights"] > 0


def test_an_export_has_a_card_of_its_step_and_is_served_from_its_own_directory(
    finished_run, tiny_target, tmp_path, capsys
):
    out = tmp_path / "draft"
    evaluation = {
        "method": "reference",
        "macro_accept_len": 1.5,
        "domains": {"math": {"accept_len": 1.5, "num_tokens": 9}},
    }
    (tmp_path / "eval.json").write_text(json.dumps(evaluation))
    argv = [
        "export",
        str(finished_run),
        "--out",
        str(out),
        "--no-vllm",
        "--step",
        "3",
        "--eval",
        str(tmp_path / "eval.json"),
    ]
    assert command_line(argv) == 0
    card = (out / "README.md").read_text()
    header = yaml.safe_load(card.split("---")[1])
    assert header["tags"] == ["speculative-decoding", "speculators", "dspark"]
    assert "base_model" not in header  # a directory of this machine
    assert "step 3 |" in card
    assert "| math | 1.50 | 9 |" in card
    told = json.loads((out / "dspark_train.json").read_text())
    assert told["target_identity"] == read_identity(tiny_target) != ""
    capsys.readouterr()
    assert command_line(["serve", str(out), "--json"]) == 0
    served = json.loads(capsys.readouterr().out)
    assert served["target"] == str(tiny_target)
    assert served["speculative_config"]["num_speculative_tokens"] == 4


def test_the_card_has_what_eval_kept_of_the_same_step(finished_run, tmp_path, capsys):
    kept = {"method": "reference", "macro_accept_len": 1.5, "domains": {"math": {"accept_len": 1.5, "num_tokens": 9}}}
    directory = RunLayout(finished_run).evaluations
    directory.mkdir()
    (directory / "reference.json").write_text(json.dumps(kept | {"step": 3}))
    argv = ["export", str(finished_run), "--no-vllm", "--out"]
    assert command_line([*argv, str(tmp_path / "third"), "--step", "3"]) == 0
    assert "| math | 1.50 | 9 |" in (tmp_path / "third" / "README.md").read_text()
    assert command_line([*argv, str(tmp_path / "last")]) == 0
    assert "| math |" not in (tmp_path / "last" / "README.md").read_text()


def test_an_upload_is_only_told_and_wants_a_target_that_others_find(finished_run, tmp_path, capsys):
    argv = ["export", str(finished_run), "--out", str(tmp_path / "draft"), "--no-vllm", "--push-to-hub", "me/draft"]
    assert command_line(argv) == 2
    assert "--target-id" in capsys.readouterr().err
    assert command_line([*argv, "--target-id", "org/tiny"]) == 0
    shown = capsys.readouterr().out
    assert "would upload" in shown
    assert "nothing was uploaded: give --confirm" in shown
    assert "dspark_train.json" not in shown  # it names this machine's directories
    card = (tmp_path / "draft" / "README.md").read_text()
    assert yaml.safe_load(card.split("---")[1])["base_model"] == "org/tiny"
    config = json.loads((tmp_path / "draft" / "config.json").read_text())
    assert config["speculators_config"]["verifier"]["name_or_path"] == "org/tiny"


def test_a_target_that_was_replaced_since_the_launch_is_refused(finished_run, tmp_path):
    resolved = resolved_of(finished_run)
    other = resolved.model_copy(update={"facts": resolved.facts.model_copy(update={"identity": "another"})})
    with pytest.raises(PairingError, match="has other weights"):
        export_checkpoint(other, finished_run / "checkpoints", tmp_path / "draft")
    bigger = resolved.model_copy(update={"facts": resolved.facts.model_copy(update={"vocab_size": 999})})
    with pytest.raises(PairingError, match="a vocabulary of 999 tokens"):
        export_checkpoint(bigger, finished_run / "checkpoints", tmp_path / "draft", other_target=True)


@pytest.mark.engine
@pytest.mark.timeout(700)
def test_vllm_reads_the_exports_weights_into_its_own_model(finished_run, tmp_path):
    exported = export_checkpoint(resolved_of(finished_run), finished_run / "checkpoints", tmp_path / "draft")
    checked = check(tmp_path / "draft", resolved_of(finished_run), tmp_path / "vllm.log")
    assert (checked.method, checked.architecture, checked.num_speculative_tokens) == ("dspark", "Qwen3DSparkModel", 4)
    assert checked.num_weights is not None, checked.text
    assert 0 < checked.num_weights <= exported.num_weights


def test_the_draft_differs_between_checkpoints_and_a_step_can_be_named(finished_run, tmp_path):
    three, six = (
        export_checkpoint(resolved_of(finished_run), finished_run / "checkpoints", tmp_path / str(step), step)
        for step in (3, 6)
    )
    assert (three.step, six.step) == (3, 6)
    early, late = (load_export(tmp_path / str(step)).fc.weight for step in (3, 6))
    assert not torch.equal(early, late)


def test_a_damaged_newest_checkpoint_is_named_and_the_one_before_exported(finished_run, tmp_path):
    import shutil

    checkpoints = tmp_path / "checkpoints"
    shutil.copytree(finished_run / "checkpoints", checkpoints, symlinks=True)
    next(step_dir(checkpoints, 6).glob("*.distcp")).write_bytes(b"damaged")
    exported = export_checkpoint(resolved_of(finished_run), checkpoints, tmp_path / "draft")
    assert exported.step == 3
    assert "step-00000006" in exported.rejected[0]
    with pytest.raises(CheckpointError, match="no checkpoint of step 6 that loads"):
        export_checkpoint(resolved_of(finished_run), checkpoints, tmp_path / "other", 6)
    assert not (tmp_path / "other").exists()


def test_a_run_without_checkpoints_is_an_error(finished_run, tmp_path):
    with pytest.raises(CheckpointError, match="no checkpoint that loads is there"):
        export_checkpoint(resolved_of(finished_run), tmp_path, tmp_path / "draft")


def test_a_directory_of_something_else_is_not_overwritten_and_an_export_is(finished_run, tmp_path):
    (tmp_path / "draft").mkdir()
    (tmp_path / "draft" / "notes.txt").write_text("mine")
    with pytest.raises(UsageError, match="exists and is no export"):
        export_checkpoint(resolved_of(finished_run), finished_run / "checkpoints", tmp_path / "draft")
    (tmp_path / "draft" / "notes.txt").unlink()
    for step in (3, 6):
        exported = export_checkpoint(resolved_of(finished_run), finished_run / "checkpoints", tmp_path / "draft", step)
    assert exported.step == 6


def test_vllm_takes_the_exports_config(finished_run, tiny_target, tmp_path):
    export_checkpoint(resolved_of(finished_run), finished_run / "checkpoints", tmp_path / "draft")
    script = (
        "import json, sys\n"
        "from vllm.transformers_utils.config import get_config, maybe_override_with_speculators\n"
        "model, _, spec = maybe_override_with_speculators(sys.argv[1], None, False)\n"
        "config = get_config(sys.argv[1], trust_remote_code=False)\n"
        "print(json.dumps({'model': model, 'method': spec['method'], 'tokens': spec['num_speculative_tokens'],"
        " 'architectures': config.architectures, 'layers': config.eagle_aux_hidden_state_layer_ids,"
        " 'draft_vocab_size': config.draft_vocab_size}))\n"
    )
    argv = [sys.executable, "-c", script, str(tmp_path / "draft")]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "model": str(tiny_target),
        "method": "dspark",
        "tokens": 4,
        "architectures": ["Qwen3DSparkModel"],
        "layers": [1, 2],
        "draft_vocab_size": 128,
    }
