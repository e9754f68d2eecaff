"""DFlash and DSpark at inference: one parallel pass over a block, then the heads.

The block is the last verified token and mask tokens after it. Its tokens attend to the target's hidden states of all
verified tokens, which every layer turns into keys and values of its own, and to each other. DFlash takes each
position's most likely token. DSpark goes through the positions in order: the Markov head adds to a position's logits
what the token just chosen makes likely, and the confidence head says how likely the target is to accept.

Checked against speculators' training forward pass and vLLM's qwen3_dflash, qwen3_dspark and DSpark speculator.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dspark_train.evaluate.attention import attend, keys_and_values
from dspark_train.evaluate.columns import Columns
from dspark_train.evaluate.dice import Chooser
from dspark_train.evaluate.drafter import Proposal, Vocabulary


class BlockDrafter:
    """A DFlash or DSpark draft of speculators."""

    def __init__(self, model: Any, num_tokens: int) -> None:
        self._model, self.num_tokens = model.requires_grad_(False), num_tokens
        self._vocabulary = Vocabulary(model.d2t, model.verifier_vocab_size)
        self._markov = getattr(model, "markov_head", None)
        self._confidence = getattr(model, "confidence_head", None)
        self._first_slot = 0 if model.config.sample_from_anchor else 1
        """With 0, position i of the block says which token follows it; with 1, which token stands there."""

    def start(self, num_rows: int) -> None:
        self._columns = Columns(num_rows, self._model.device)

    def read(self, hidden: Tensor, next_ids: Tensor, positions: Tensor, valid: Tensor) -> None:
        context = self._model.hidden_norm(self._model.fc(hidden.to(self._model.dtype)))
        cos, sin = self._model.rotary_emb(context, positions)
        for index, layer in enumerate(self._model.layers):
            keys, values = keys_and_values(layer.self_attn, context, cos, sin)
            self._columns.cache.update(keys, values, index)
        self._columns.append(positions, valid)
        self._columns.compact()

    def propose(self, last_ids: Tensor, positions: Tensor, chooser: Chooser) -> Proposal:
        hidden = self._backbone(last_ids, positions)
        logits = self._model.lm_head(hidden).float()
        if self._markov is None and self._confidence is None:
            chosen = [chooser.choose(logits[:, slot]) for slot in range(self.num_tokens)]
            ids = self._vocabulary.to_target(torch.stack([ids for ids, _ in chosen], dim=1))
            return Proposal(ids, self._spread([probs for _, probs in chosen]), None)
        return self._in_sequence(last_ids, hidden, logits, chooser)

    def keep_rows(self, rows: Tensor) -> None:
        self._columns.keep_rows(rows)

    def _backbone(self, last_ids: Tensor, positions: Tensor) -> Tensor:
        """Hidden states [rows, drafted, hidden] of the positions of the block that predict."""
        num_slots = self.num_tokens + self._first_slot
        block = last_ids.new_full((len(last_ids), num_slots), self._model.mask_token_id)
        block[:, 0] = last_ids
        block_positions = positions.unsqueeze(1) + torch.arange(num_slots, device=positions.device)
        hidden = self._model.embed_tokens(block)
        cos, sin = self._model.rotary_emb(hidden, block_positions)
        for index, layer in enumerate(self._model.layers):
            hidden = self._layer(index, layer, hidden, cos, sin, self._mask(index, block_positions))
        return self._model.norm(hidden)[:, self._first_slot :]

    def _layer(self, index: int, layer: Any, hidden: Tensor, cos: Tensor, sin: Tensor, mask: Tensor) -> Tensor:
        normed = layer.input_layernorm(hidden)
        keys, values = keys_and_values(layer.self_attn, normed, cos, sin)
        context = self._columns.cache.layers[index]
        keys, values = torch.cat([context.keys, keys], dim=2), torch.cat([context.values, values], dim=2)
        hidden = hidden + attend(layer.self_attn, normed, cos, sin, keys, values, mask)
        return hidden + layer.mlp(layer.post_attention_layernorm(hidden))

    def _mask(self, index: int, block_positions: Tensor) -> Tensor:
        """A layer over a window is causal within the block, unless the draft was trained otherwise."""
        windowed = index in self._model.sliding_window_indices
        return self._columns.mask(
            block_positions,
            causal=windowed and not self._model.sliding_window_non_causal,
            window=self._model.sliding_window if windowed else None,
        )

    def _in_sequence(self, last_ids: Tensor, hidden: Tensor, logits: Tensor, chooser: Chooser) -> Proposal:
        before, ids, probs = [last_ids], [], []
        for slot in range(self.num_tokens):
            drawn, probabilities = chooser.choose(logits[:, slot] + self._bias(before, hidden))
            ids.append(self._vocabulary.to_target(drawn))
            probs.append(probabilities)
            before.append(ids[-1])
        confidence = self._confidence_of(torch.stack(before[:-1], dim=1), hidden)
        return Proposal(torch.stack(ids, dim=1), self._spread(probs), confidence)

    def _bias(self, before: list[Tensor], hidden: Tensor) -> Tensor:
        """What the tokens chosen so far add to the logits of the next position. A recurrent head reads all of them."""
        if self._markov is None:
            return hidden.new_zeros(())
        first = 0 if self._markov.head_type == "rnn" else len(before) - 1
        ids = torch.stack(before[first:], dim=1)
        bias = self._markov.block_bias(prev_token_ids=ids, hidden_states=hidden[:, first : len(before)])
        return bias[:, -1].float()

    def _confidence_of(self, before: Tensor, hidden: Tensor) -> Tensor | None:
        if self._confidence is None:
            return None
        features = hidden
        if self._markov is not None and self._model.config.confidence_head_with_markov:
            features = torch.cat([hidden, self._markov.prev_embeddings(before).to(hidden.dtype)], dim=-1)
        return self._confidence(features).float()

    def _spread(self, probs: list[Tensor | None]) -> Tensor | None:
        known = [self._vocabulary.spread(each) for each in probs if each is not None]
        return torch.stack(known, dim=1) if known else None
