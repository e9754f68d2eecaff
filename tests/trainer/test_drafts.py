"""Drafts are built as the topology says, or not at all; what is exported loads back."""

import json
from argparse import Namespace

import pytest
import torch
from speculators.train.trainer import TrainerConfig, _resolve_scheduler_steps

from dspark_train.errors import CheckpointError, DataError, StartError
from dspark_train.trainer.drafts import build_draft, load_export, save_export, schedule_steps, vocab_mappings
from tests.trainer import recorded

pytestmark = pytest.mark.torch


def test_the_same_seed_gives_the_same_weights_and_another_seed_others(tiny_target, recorded_data):
    def weights(seed):
        return build_draft(recorded.resolved_run(tiny_target, recorded_data, run={"seed": seed}), recorded_data).model

    first, again, other = (weights(seed).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert any(not torch.equal(first[name], other[name]) for name in first)
    assert all(not value.isnan().any() for value in first.values() if value.is_floating_point())


def test_a_draft_reads_the_layers_and_has_the_vocabulary_of_the_topology(tiny_target, recorded_data):
    draft = build_draft(recorded.resolved_run(tiny_target, recorded_data), recorded_data)
    assert draft.layer_ids == (1, 2)
    assert draft.model.draft_vocab_size == 128
    assert int(draft.model.t2d.sum()) == 128
    assert draft.train_kwargs["max_anchors"] == 12


def test_a_reduced_vocabulary_without_frequencies_is_an_error_and_never_the_full_one(tiny_target, tmp_path):
    with pytest.raises(DataError, match=r"token_freq.pt: does not exist, and draft_vocab_size is 128"):
        build_draft(recorded.resolved_run(tiny_target, tmp_path), tmp_path)


def test_without_a_draft_vocabulary_it_is_the_targets(tiny_target, tmp_path):
    resolved = recorded.resolved_run(tiny_target, tmp_path, draft={"train": {"num_layers": 1, "max_anchors": 4}})
    assert build_draft(resolved, tmp_path).model.draft_vocab_size == 512


def test_a_draft_vocabulary_above_the_targets_is_refused(tiny_target, recorded_data):
    args = Namespace(
        verifier_name_or_path=str(tiny_target),
        trust_remote_code=False,
        d2t_path=None,
        t2d_path=None,
        draft_vocab_size=1000,
        speculator_type="dspark",
    )
    with pytest.raises(StartError, match=r"draft_vocab_size \(1000\) is above the target's vocabulary \(512\)"):
        vocab_mappings(args, recorded_data)


def test_a_target_that_is_not_there_is_named(tmp_path, recorded_data):
    with pytest.raises(StartError, match="could not be built"):
        build_draft(recorded.resolved_run(tmp_path / "none", recorded_data), recorded_data)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"scheduler_warmup_ratio": 0.1},
        {"scheduler_warmup_steps": 7},
        {"scheduler_total_steps": 30, "scheduler_warmup_ratio": 0.5},
    ],
)
def test_warm_up_and_total_follow_speculators_rules(fields):
    none = dict.fromkeys(("scheduler_warmup_steps", "scheduler_warmup_ratio", "scheduler_total_steps"))
    config = TrainerConfig(lr=1e-3, num_epochs=1, save_path="", max_steps=400, **fields)
    assert schedule_steps(Namespace(**{**none, **fields}), 400) == _resolve_scheduler_steps(config, 400)


@pytest.mark.parametrize("algorithm", ["dspark", "dflash"])
def test_an_export_loads_back_with_the_same_weights_and_the_targets_own(
    algorithm, tiny_target, recorded_data, tmp_path
):
    train = {key: value for key, value in recorded.TRAIN.items() if algorithm == "dspark" or key != "markov_rank"}
    resolved = recorded.resolved_run(tiny_target, recorded_data, draft={"algorithm": algorithm, "train": train})
    model = build_draft(resolved, recorded_data).model
    save_export(model, tmp_path / "out")
    loaded = load_export(tmp_path / "out")
    for name, value in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], value), name
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["speculators_config"]["algorithm"] == algorithm
    assert config["speculators_config"]["verifier"]["name_or_path"] == str(tiny_target)


def test_a_directory_that_is_no_export_is_named(tmp_path):
    with pytest.raises(CheckpointError, match="does not load as a draft"):
        load_export(tmp_path)
