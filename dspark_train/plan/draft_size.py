"""How many bytes the draft's weights and optimizer take. Pure."""

from __future__ import annotations

from typing import Any

from dspark_train.topology.facts import TargetFacts
from dspark_train.topology.resolve import Resolved
from dspark_train.topology.train_fields import snapshot

_WEIGHT_BYTES = 4
"""Master weights are fp32."""
_GRAD_BYTES = 4
_REPLICA_GRAD_BYTES = 8
"""On CPU the sums of a step in float64; on CUDA those in float32, and the gradients of the pass in hand."""
_ADAMW_BYTES = 8
"""Two fp32 moments."""
_MUON_BYTES = 4
"""One fp32 momentum, for matrices; everything else is AdamW's."""


def draft_state_bytes(resolved: Resolved) -> int | None:
    """Weights, gradients and optimizer state of a DSpark or DFlash draft; activations are not in it.

    Counts the parameters of speculators' models (models/dflash/core.py, models/dspark/model_definitions.py), with
    H hidden size, A attention heads and K key-value heads of width D, I MLP width, V and R full and draft vocabulary,
    L layers read from the target, m Markov rank: a decoder layer has 2 H A D + 2 H K D + 3 H I matrix elements and
    2 H + 2 D norm weights; before them L H^2 + 2 H; the Markov head m V + m R (+ m (H + m) + m if gated,
    3 m (2 m + H) + 3 m if rnn); the confidence head H + m + 1. Frozen, so only weights: V H + 2 R H + H.
    The decoder's widths are the target's, as speculators takes them over.

    None where a width is unknown, and for drafts of other algorithms or with a config of their own.
    """
    train, facts = resolved.train, resolved.facts
    if (
        train["speculator_type"] not in ("dspark", "dflash")
        or train.get("from_pretrained")
        or train.get("draft_config")
    ):
        return None
    widths = _widths(facts)
    if widths is None:
        return None
    hidden, heads, kv_heads, head_dim, mlp, vocab = widths
    reduced = train.get("draft_vocab_size") or vocab
    num_layers = train.get("num_layers") or 5
    matrices = num_layers * (2 * hidden * head_dim * (heads + kv_heads) + 3 * hidden * mlp)
    matrices += len(resolved.topology.target.layers) * hidden**2
    others = num_layers * 2 * (hidden + head_dim) + 2 * hidden
    if train["speculator_type"] == "dspark":
        matrices, others = matrices + _gate(resolved, hidden), others + _heads(resolved, hidden, vocab, reduced)
    frozen = hidden * (vocab + 2 * reduced + 1)
    muon = _default(resolved, "optimizer") == "muon"
    grad_bytes = _GRAD_BYTES if resolved.topology.trainers.sharding == "fsdp" else _REPLICA_GRAD_BYTES
    trained = (_WEIGHT_BYTES + grad_bytes) * (matrices + others)
    moments = (_MUON_BYTES if muon else _ADAMW_BYTES) * matrices + _ADAMW_BYTES * others
    return trained + moments + _WEIGHT_BYTES * frozen


def _widths(facts: TargetFacts) -> tuple[int, int, int, int, int, int] | None:
    hidden, heads, mlp, vocab = facts.hidden_size, facts.num_attention_heads, facts.intermediate_size, facts.vocab_size
    if not (hidden and heads and mlp and vocab):
        return None
    return hidden, heads, facts.num_key_value_heads or heads, facts.head_dim or hidden // heads, mlp, vocab


def _gate(resolved: Resolved, hidden: int) -> int:
    """Matrix elements of the Markov head beside its vocabulary factors, which Muon leaves to AdamW."""
    rank = _default(resolved, "markov_rank")
    kinds = {"vanilla": 0, "gated": rank * (hidden + rank), "rnn": 3 * rank * (2 * rank + hidden)}
    return int(kinds[_default(resolved, "markov_head_type")])


def _heads(resolved: Resolved, hidden: int, vocab: int, reduced: int) -> int:
    """Elements of the Markov head's vocabulary factors and biases, and of the confidence head."""
    rank = _default(resolved, "markov_rank")
    biases = {"vanilla": 0, "gated": rank, "rnn": 3 * rank}[_default(resolved, "markov_head_type")]
    seen = hidden + (rank if _default(resolved, "confidence_head_with_markov") else 0)
    return int(rank * (vocab + reduced) + biases + (seen + 1 if _default(resolved, "enable_confidence_head") else 0))


def _default(resolved: Resolved, name: str) -> Any:
    """The value of a training field; speculators' own default where it is not given."""
    return resolved.train.get(name, snapshot()["fields"][name]["default"])
