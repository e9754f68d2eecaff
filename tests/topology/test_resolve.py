"""What follows from a topology and its target."""

from __future__ import annotations

from pathlib import Path

import pytest

from dspark_train.errors import TopologyError
from dspark_train.topology.facts import TargetFacts
from dspark_train.topology.load import load
from dspark_train.topology.resolve import resolve

TOPOLOGIES = Path(__file__).parents[2] / "topologies"
QUICKSTART = TOPOLOGIES / "quickstart.yaml"
SMOL = TargetFacts(
    num_layers=30,
    hidden_size=576,
    vocab_size=49152,
    num_attention_heads=9,
    max_position_embeddings=8192,
    is_local=True,
    path="/models/target",
    source="/models/target/config.json",
)


def test_the_quickstart_stores_four_layers_in_fp32() -> None:
    resolved = resolve(load(QUICKSTART), SMOL)
    assert (resolved.device, resolved.hidden_dtype) == ("cpu", "float32")
    assert resolved.layer_ids == (2, 15, 27, 30)
    assert resolved.bytes_per_token == 4 * 576 * 4
    assert resolved.step_bytes == 2 * 512 * 9216
    assert resolved.segment_bytes == 2**28


def test_a_sample_of_64k_tokens_of_k3_has_the_published_size() -> None:
    resolved = resolve(load(TOPOLOGIES / "gb300-3node.yaml"), TargetFacts())
    assert resolved.hidden_dtype == "bfloat16"
    assert resolved.bytes_per_token is not None
    assert resolved.bytes_per_token * 65536 == 5.25 * 2**30
    assert resolved.layer_ids is None


def test_training_fields_are_those_given_and_those_that_other_keys_decide() -> None:
    assert resolve(load(QUICKSTART, ["draft.train={num_layers: 3, lr: 0.5}"]), SMOL).train == {
        "loss_implementation": "eager",
        "draft_attn_impl": "sdpa",
        "num_layers": 3,
        "lr": 0.5,
        "speculator_type": "dspark",
        "verifier_name_or_path": "/models/target",
        "trust_remote_code": False,
        "target_layer_ids": [2, 15, 27],
        "data_path": "quickstart/data",
        "total_seq_len": 512,
        "train_data_ratio": 0.9,
        "hidden_states_dtype": "float32",
        "seed": 42,
        "fsdp_shard": False,
        "run_name": "quickstart",
        "max_steps": 60,
    }


def test_on_gpus_a_draft_keeps_the_kernels_of_speculators() -> None:
    train = resolve(load(TOPOLOGIES / "qwen3-8b.yaml"), TargetFacts()).train
    assert not {"loss_implementation", "draft_attn_impl"} & set(train)


def test_sharding_fsdp_and_epochs_reach_the_trainer() -> None:
    overrides = ["trainers.sharding=fsdp", "run={epochs: 2, seed: 7}", "data.validation_frac=0.25"]
    train = resolve(load(QUICKSTART, overrides), SMOL).train
    assert (train["fsdp_shard"], train["epochs"], train["seed"], train["train_data_ratio"]) == (True, 2, 7, 0.75)
    assert "max_steps" not in train


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("target.layers=[2, 31]", "target.layers[1] (31) is beyond the target's 30 layers: use ids from 0 to 29"),
        ("target.layers=[2, 30]", "target.layers[1] (30) is the last layer: remove it: it is added by itself"),
        ("engines.tensor_parallel=2", "engines.tensor_parallel (2) does not divide the target's 9 heads: lower it"),
        (
            "data.seq_len=8192",
            "data.seq_len (8192) is too long for the target, which reads 8192 tokens: use 8191 or less: vLLM generates "
            "one token more",
        ),
        (
            "target.shape.hidden_size=512",
            "target.shape.hidden_size (512) is not the target's own (576, from /models/target/config.json): correct "
            "it, or remove the line",
        ),
        (
            "draft.train.draft_vocab_size=60000",
            "draft.train.draft_vocab_size (60000) is above the target's vocabulary (49152): lower it, or remove the "
            "line for all of the vocabulary",
        ),
    ],
)
def test_what_the_target_cannot_do_is_refused_where_it_was_written(override: str, expected: str) -> None:
    extra = ["engines.max_in_flight_tokens=8192"] if "seq_len" in override else []
    topology = load(QUICKSTART, [override, *extra])
    with pytest.raises(TopologyError) as caught:
        resolve(topology, SMOL)
    assert str(caught.value) == f"--set {override}: {expected}"
