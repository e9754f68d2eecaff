"""A draft and a target are told apart by what both say; what is unknown is not held against a pair."""

from __future__ import annotations

import pytest

from dspark_train.topology.facts import TargetFacts
from dspark_train.topology.pairing import DraftFacts, Wanted, mismatches

TARGET = TargetFacts(
    num_layers=30, hidden_size=576, vocab_size=49152, architectures=("LlamaForCausalLM",), identity="aa"
)
DRAFT = DraftFacts(
    where="drafts/a1",
    algorithm="dspark",
    target="smol",
    architectures=("LlamaForCausalLM",),
    identity="aa",
    hidden_size=576,
    vocab_size=49152,
    draft_vocab_size=8192,
    layer_ids=(2, 15, 27),
)
WANTED = Wanted(algorithm="dspark", layer_ids=(2, 15, 27), draft_vocab_size=8192)


def test_a_draft_belongs_to_the_target_that_it_was_trained_for() -> None:
    assert mismatches(DRAFT, TARGET, "smol", WANTED) == []


def test_nothing_is_held_against_a_pair_of_which_nothing_is_known() -> None:
    assert mismatches(DraftFacts(where="d"), TARGET, "t", WANTED) == []
    assert mismatches(DRAFT, TargetFacts(), "t") == []


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"hidden_size": 2048}, "hidden states of width 576, and big has 2048"),
        ({"vocab_size": 151936}, "a vocabulary of 49152 tokens, and big has 151936"),
        ({"num_layers": 26}, "the draft reads layer 27, and big has 26 layers"),
        ({"architectures": ("Qwen3ForCausalLM",)}, "of a LlamaForCausalLM, and big is a Qwen3ForCausalLM"),
        ({"identity": "bb"}, "the draft was trained for another target: it has the shape of smol, but big has other"),
    ],
)
def test_another_target_is_refused_with_the_reason(changed: dict[str, object], reason: str) -> None:
    (found,) = mismatches(DRAFT, TARGET.model_copy(update=changed), "big")
    assert reason in found


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"algorithm": "dflash"}, "it is a dspark draft, and draft.algorithm is dflash"),
        ({"layer_ids": (2, 15, 26)}, "reads layers 2, 15, 27, and target.layers is 2, 15, 26"),
        ({"draft_vocab_size": 4096}, "proposes from 8192 tokens, and draft.train.draft_vocab_size is 4096"),
    ],
)
def test_a_start_that_the_topology_does_not_describe_is_refused(changed: dict[str, object], reason: str) -> None:
    (found,) = mismatches(DRAFT, TARGET, "smol", WANTED.model_copy(update=changed))
    assert reason in found


def test_only_other_weights_can_be_allowed_and_never_another_shape() -> None:
    tuned = TARGET.model_copy(update={"identity": "bb"})
    assert mismatches(DRAFT, tuned, "tuned", other_target=True) == []
    assert mismatches(DRAFT, tuned.model_copy(update={"vocab_size": 5}), "tuned", other_target=True)


def test_the_output_of_the_last_layer_may_be_read() -> None:
    assert mismatches(DRAFT.model_copy(update={"layer_ids": (30,)}), TARGET, "smol") == []
