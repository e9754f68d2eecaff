"""EAGLE-3 at inference: one token after the other, each from the hidden state that the one before left.

The draft reads pairs: a verified token's hidden states of the target, and the token that follows. Beyond the last pair
it goes on from its own hidden states and its own tokens; what it kept of those is dropped after each proposal.

Checked against speculators' Eagle3DraftModel and vLLM's llama_eagle3 and llm_base_proposer.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dspark_train.evaluate.attention import attend, keys_and_values
from dspark_train.evaluate.columns import Columns
from dspark_train.evaluate.dice import Chooser
from dspark_train.evaluate.drafter import Proposal, Vocabulary


class EagleDrafter:
    """An EAGLE-3 draft of speculators."""

    def __init__(self, model: Any, num_tokens: int) -> None:
        self._model, self.num_tokens = model.requires_grad_(False), num_tokens
        self._vocabulary = Vocabulary(model.d2t, model.verifier_vocab_size)

    def start(self, num_rows: int) -> None:
        self._columns = Columns(num_rows, self._model.device)
        self._last: Tensor | None = None

    def read(self, hidden: Tensor, next_ids: Tensor, positions: Tensor, valid: Tensor) -> None:
        out = self._run(self._combined(hidden.to(self._model.dtype)), next_ids, positions, valid)
        newest = (valid.long() * torch.arange(1, valid.shape[1] + 1, device=valid.device)).argmax(dim=1)
        self._last = out[torch.arange(len(out), device=out.device), newest]
        self._columns.compact()

    def propose(self, last_ids: Tensor, positions: Tensor, chooser: Chooser) -> Proposal:
        """``last_ids`` were read already, each beside the hidden states of the token before it."""
        assert self._last is not None, "nothing was read"
        hidden, ids, probs = self._last, [], []
        for step in range(self.num_tokens):
            drawn, probabilities = chooser.choose(self._logits(hidden))
            ids.append(self._vocabulary.to_target(drawn))
            probs.append(probabilities)
            if step + 1 < self.num_tokens:
                at = (positions + step).unsqueeze(1)
                hidden = self._run(hidden.unsqueeze(1), ids[-1].unsqueeze(1), at, None).squeeze(1)
        self._columns.drop_newest(self.num_tokens - 1)
        known = [self._vocabulary.spread(each) for each in probs if each is not None]
        return Proposal(torch.stack(ids, dim=1), torch.stack(known, dim=1) if known else None, None)

    def keep_rows(self, rows: Tensor) -> None:
        self._columns.keep_rows(rows)
        self._last = None if self._last is None else self._last[rows]

    def _combined(self, hidden: Tensor) -> Tensor:
        """[rows, tokens, hidden size] of the target's hidden states of all layers read, side by side."""
        if self._model.input_norm is not None:
            hidden = self._model.input_norm(hidden)
        if self._model.fc_norm is not None:
            chunks = hidden.chunk(len(self._model.fc_norm), dim=-1)
            hidden = torch.cat([norm(chunk) for norm, chunk in zip(self._model.fc_norm, chunks, strict=True)], dim=-1)
        return self._model.fc(hidden)

    def _logits(self, hidden: Tensor) -> Tensor:
        normed = hidden if self._model.config.norm_output else self._model.norm(hidden)
        return self._model.lm_head(normed).float()

    def _run(self, hidden: Tensor, ids: Tensor, positions: Tensor, valid: Tensor | None) -> Tensor:
        """Run tokens through all layers and keep their keys and values; what they hand on: [rows, tokens, hidden]."""
        embedded = self._model.embed_tokens(ids)
        cos, sin = self._model.rotary_emb(hidden, positions)
        for index, layer in enumerate(self._model.layers):
            window = self._model.sliding_window if index in self._model.sliding_window_indices else None
            mask = self._columns.mask(positions, valid, window=window)
            hidden = self._layer(index, layer, embedded, hidden, (cos, sin), mask)
        self._columns.append(positions, valid)
        return self._model.norm(hidden) if self._model.config.norm_output else hidden

    def _layer(
        self, index: int, layer: Any, embedded: Tensor, hidden: Tensor, turn: tuple[Tensor, Tensor], mask: Tensor
    ) -> Tensor:
        """The first layer reads the token's embedding beside the hidden state."""
        if index == 0:
            normed = layer.hidden_norm(hidden)
            residual = normed if layer.norm_before_residual else hidden
            normed = torch.cat([layer.input_layernorm(embedded), normed], dim=-1)
        else:
            residual, normed = hidden, layer.input_layernorm(hidden)
        keys, values = keys_and_values(layer.self_attn, normed, *turn)
        keys, values = self._columns.cache.update(keys, values, index)
        hidden = residual + attend(layer.self_attn, normed, *turn, keys, values, mask)
        return hidden + layer.mlp(layer.post_attention_layernorm(hidden))
