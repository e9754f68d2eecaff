"""The size of a draft, against speculators' own model."""

from __future__ import annotations

from typing import Any

import pytest

from dspark_train.plan.draft_size import draft_state_bytes

from .conftest import SMOL, Resolve


@pytest.mark.torch
@pytest.mark.parametrize(
    "train",
    [
        "num_layers: 2, draft_vocab_size: 8192, optimizer: adamw",
        "num_layers: 1, draft_vocab_size: 100, optimizer: muon",
        "num_layers: 1, optimizer: muon, markov_rank: 16, markov_head_type: gated",
        "num_layers: 1, optimizer: adamw, markov_rank: 16, markov_head_type: rnn, enable_confidence_head: false",
        "num_layers: 1, markov_rank: 0, confidence_head_with_markov: false",
    ],
)
def test_the_size_is_that_of_the_parameters_that_speculators_makes(shipped: Resolve, train: str) -> None:
    resolved = shipped("quickstart", f"draft.train={{{train}}}")
    assert draft_state_bytes(resolved) == _counted(resolved.train, list(resolved.topology.target.layers))


def test_the_quickstart_by_hand(shipped: Resolve) -> None:
    layer = 2 * 576 * 64 * (9 + 3) + 3 * 576 * 1536
    trained = 2 * layer + 3 * 576**2 + 2 * 2 * (576 + 64) + 2 * 576 + 256 * (49152 + 8192) + 576 + 256 + 1
    by_muon = 2 * layer + 3 * 576**2  # one momentum each instead of AdamW's two
    frozen = 576 * (49152 + 2 * 8192 + 1)
    adamw = (4 + 8 + 8) * trained + 4 * frozen
    assert draft_state_bytes(shipped("quickstart")) == adamw
    assert draft_state_bytes(shipped("quickstart", "draft.train.optimizer=muon")) == adamw - 4 * by_muon
    sharded = shipped("quickstart", "trainers={sharding: fsdp, ranks: {start: 1, max: 1}}")
    assert draft_state_bytes(sharded) == adamw - 4 * trained


@pytest.mark.parametrize("unknown", ["hidden_size", "intermediate_size", "num_attention_heads", "vocab_size"])
def test_an_unknown_width_makes_an_unknown_size(shipped: Resolve, unknown: str) -> None:
    facts = SMOL.model_copy(update={unknown: None})
    assert draft_state_bytes(shipped("quickstart", "target.shape={}", facts=facts)) is None


def test_drafts_of_their_own_shape_have_an_unknown_size(shipped: Resolve) -> None:
    for override in ("draft.train={draft_config: x}", "draft.train={from_pretrained: x}", "draft={algorithm: eagle3}"):
        assert draft_state_bytes(shipped("quickstart", override)) is None


def _counted(train: dict[str, Any], layers: list[int]) -> int:
    """Bytes of a model that speculators makes of the same fields, without its target's weights."""
    import torch
    from speculators.config import SpeculatorsConfig, VerifierConfig
    from speculators.models.dspark.config import DSparkSpeculatorConfig
    from speculators.models.dspark.core import DSparkDraftModel
    from speculators.proposals.greedy import GreedyTokenProposalConfig
    from speculators.train.optimizers import split_named_params_for_muon
    from transformers import Qwen3Config

    decoder = Qwen3Config(
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=train["num_layers"],
        num_attention_heads=9,
        num_key_value_heads=3,
        head_dim=64,
        tie_word_embeddings=False,
    )
    decoder._attn_implementation = "sdpa"
    proposal = GreedyTokenProposalConfig(speculative_tokens=8)
    verifier = VerifierConfig(name_or_path=None, architectures=[])
    heads = {name: train[name] for name in train if name.startswith(("markov", "enable_conf", "confidence_head_with"))}
    with torch.device("meta"):
        model = DSparkDraftModel(
            DSparkSpeculatorConfig(
                transformer_layer_config=decoder,
                draft_vocab_size=train.get("draft_vocab_size", 49152),
                block_size=8,
                aux_hidden_state_layer_ids=layers,
                speculators_config=SpeculatorsConfig(
                    algorithm="dspark", proposal_methods=[proposal], default_proposal_method="greedy", verifier=verifier
                ),
                **heads,
            )
        )
    total: int = 4 * sum(weight.numel() for weight in model.parameters())
    muon, adamw = split_named_params_for_muon(model)
    trained: int = sum(weight.numel() for _, weight in muon + adamw)
    in_muon: int = sum(weight.numel() for _, weight in muon) if train.get("optimizer", "muon") == "muon" else 0
    return total + 8 * trained + 4 * in_muon + 8 * (trained - in_muon)
