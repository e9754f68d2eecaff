"""What is known of the target, and whether a topology goes with it. Pure: `data/target.py` reads the model's files."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import BaseModel, ConfigDict

from dspark_train.topology.schema import Topology
from dspark_train.topology.source import Finding


class TargetFacts(BaseModel):
    """What the target's own files say. A figure that could not be read is None, never guessed."""

    model_config = ConfigDict(frozen=True)

    num_layers: int | None = None
    hidden_size: int | None = None
    vocab_size: int | None = None
    weight_bytes: int | None = None
    intermediate_size: int | None = None
    """Width of the (dense) MLP; drafts take it over."""
    num_attention_heads: int | None = None
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    max_position_embeddings: int | None = None
    is_local: bool = False
    """Whether the target is a directory on this machine, so that no hub is needed to load it."""
    path: str = ""
    """That directory, absolute; "" where it is not local."""
    source: str = ""
    """Where the figures are from: a path, or "topology"."""
    architectures: tuple[str, ...] = ()
    identity: str = ""
    """Digest of some of its weights, "" where they are not here: tells models of one shape apart."""


def contradictions(topology: Topology, read: TargetFacts, merged: TargetFacts) -> Iterator[Finding]:
    """Where the topology does not go with its target.

    read: what the target's own files say. merged: with the figures that only ``target.shape`` gives.
    """
    yield from _shape(topology, read)
    yield from _layers(topology, merged.num_layers)
    size, heads = topology.engines.tensor_parallel, merged.num_attention_heads
    if heads and heads % size:
        yield Finding("engines.tensor_parallel", f"({size}) does not divide the target's {heads} heads", "lower it")
    seq_len, longest = topology.data.seq_len, merged.max_position_embeddings
    stretched = "hf_overrides" in topology.engines.vllm or "VLLM_ALLOW_LONG_MAX_MODEL_LEN" in topology.engines.env
    if longest and seq_len + 1 > longest and not stretched:
        text = f"({seq_len}) is too long for the target, which reads {longest} tokens"
        yield Finding("data.seq_len", text, f"use {longest - 1} or less: vLLM generates one token more")
    reduced, vocab = topology.draft.train.get("draft_vocab_size"), merged.vocab_size
    if reduced and vocab and reduced > vocab:
        text = f"({reduced}) is above the target's vocabulary ({vocab})"
        yield Finding("draft.train.draft_vocab_size", text, "lower it, or remove the line for all of the vocabulary")


def _shape(topology: Topology, read: TargetFacts) -> Iterator[Finding]:
    shape = topology.target.shape
    for name in ("num_layers", "hidden_size", "vocab_size"):
        given, own = getattr(shape, name), getattr(read, name)
        if given and own and given != own:
            text = f"({given}) is not the target's own ({own}, from {read.source})"
            yield Finding(f"target.shape.{name}", text, "correct it, or remove the line")


def _layers(topology: Topology, num_layers: int | None) -> Iterator[Finding]:
    for index, layer in enumerate(topology.target.layers if num_layers else ()):
        if layer == num_layers:
            yield Finding(f"target.layers[{index}]", f"({layer}) is the last layer", "remove it: it is added by itself")
        elif num_layers and layer > num_layers:
            text = f"({layer}) is beyond the target's {num_layers} layers"
            yield Finding(f"target.layers[{index}]", text, f"use ids from 0 to {num_layers - 1}")
