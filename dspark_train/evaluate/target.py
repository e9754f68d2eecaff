"""The target as transformers runs it: logits, and the hidden states that a draft reads, over a shared cache."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from dspark_train.errors import UsageError
from dspark_train.evaluate.columns import Columns

PREFILL_CHUNK = 256
"""Tokens of each prompt run at a time: the hidden states of all layers are held for so many only."""
_ATTENTIONS = {"full_attention", "sliding_attention"}


class Ran(NamedTuple):
    """logits: [rows, tokens, vocabulary] float32. hidden: [rows, tokens, layers read x hidden size]."""

    logits: Tensor
    hidden: Tensor


class Prefilled(NamedTuple):
    """A batch of prompts that was run, padded at the left.

    columns: the cache. logits: [rows, vocabulary], of each prompt's last token. hidden: [rows, tokens, layers read x
    hidden size]. ids, positions, valid: [rows, tokens]; valid is False for padding.
    """

    columns: Columns
    logits: Tensor
    hidden: Tensor
    ids: Tensor
    positions: Tensor
    valid: Tensor


class Target:
    """A target for verification.

    model: a causal language model of transformers whose layers attend fully or over a window. layer_ids: the hidden
    states that the draft reads, in transformers' count: 0 is the embedding, i what layer i gives.
    """

    def __init__(self, model: Any, layer_ids: Sequence[int]) -> None:
        config = model.config.get_text_config()
        self._model, self._layer_ids = model.requires_grad_(False), tuple(layer_ids)
        self.device: torch.device = model.device
        self.dtype: torch.dtype = model.dtype
        self.vocab_size = int(config.vocab_size)
        self.max_positions = int(getattr(config, "max_position_embeddings", 0) or 1 << 31)
        kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
        self._windowed = "sliding_attention" in kinds
        self._window = getattr(config, "sliding_window", None)
        _refuse(kinds, self._layer_ids, int(config.num_hidden_layers))

    def run(
        self, columns: Columns, ids: Tensor, positions: Tensor, valid: Tensor | None = None, *, num_logits: int = 0
    ) -> Ran:
        """Run new tokens [rows, tokens] and add them to ``columns``. num_logits: of so many last tokens; 0: of all."""
        out = self._model(
            input_ids=ids,
            attention_mask=self._mask(columns, positions, valid),
            position_ids=positions,
            past_key_values=columns.cache,
            use_cache=True,
            output_hidden_states=True,
            logits_to_keep=num_logits,
        )
        columns.append(positions, valid)
        return Ran(out.logits.float(), torch.cat([out.hidden_states[layer] for layer in self._layer_ids], dim=-1))

    def prefill(self, prompts: Sequence[Sequence[int]]) -> Prefilled:
        """Run prompts, in pieces, into a new cache."""
        ids, positions, valid = _left_padded(prompts, self.device)
        columns, hidden = Columns(len(prompts), self.device), []
        for start in range(0, ids.shape[1], PREFILL_CHUNK):
            piece = slice(start, start + PREFILL_CHUNK)
            ran = self.run(columns, ids[:, piece], positions[:, piece], valid[:, piece], num_logits=1)
            hidden.append(ran.hidden)
        return Prefilled(columns, ran.logits[:, -1], torch.cat(hidden, dim=1), ids, positions, valid)

    def over(self, ids: Sequence[int], num_logits: int) -> Tensor:
        """Logits [num_logits, vocabulary] after each of the last tokens of one text, in one pass."""
        row = torch.tensor([list(ids)], device=self.device)
        positions = torch.arange(len(ids), device=self.device).unsqueeze(0)
        return self.run(Columns(1, self.device), row, positions, num_logits=num_logits).logits[0]

    def _mask(self, columns: Columns, positions: Tensor, valid: Tensor | None) -> Tensor | Mapping[str, Tensor]:
        full = columns.mask(positions, valid)
        if not self._windowed:
            return full
        windowed = columns.mask(positions, valid, window=self._window)
        return {"full_attention": full, "sliding_attention": windowed}


def load_target(model: str, layer_ids: Sequence[int], *, trust_remote_code: bool = False) -> Target:
    """Load a target: float32 on CPU, where it verifies what a token at a time would give; its own type on a GPU."""
    on_gpu = torch.cuda.is_available()
    try:
        loaded = AutoModelForCausalLM.from_pretrained(
            model,
            dtype="auto" if on_gpu else torch.float32,
            attn_implementation="sdpa",
            trust_remote_code=trust_remote_code,
        )
    except (OSError, ValueError) as error:
        raise UsageError(f"the target {model} does not load in transformers: {error}") from error
    return Target(loaded.to("cuda" if on_gpu else "cpu").eval(), layer_ids)


def load_tokenizer(model: str, *, trust_remote_code: bool = False) -> Any:
    """The target's tokenizer, with its chat template."""
    return AutoTokenizer.from_pretrained(model, trust_remote_code=trust_remote_code)


def load_stop_ids(model: str, *, trust_remote_code: bool = False) -> frozenset[int]:
    """The tokens that end a text, as engines find them: the tokenizer's own, and those of the generation config."""
    found = {load_tokenizer(model, trust_remote_code=trust_remote_code).eos_token_id}
    with contextlib.suppress(OSError):
        ids = GenerationConfig.from_pretrained(model).eos_token_id
        found |= set(ids) if isinstance(ids, list) else {ids}
    return frozenset(int(token) for token in found if token is not None)


def _refuse(kinds: set[str], layer_ids: Sequence[int], num_layers: int) -> None:
    if other := sorted(kinds - _ATTENTIONS):
        raise UsageError(
            f"the target has layers of {', '.join(other)}: the reference cannot take refused tokens back out of them; "
            "use --method served"
        )
    if wrong := [layer for layer in layer_ids if not 0 <= layer < num_layers]:
        raise UsageError(
            f"the draft reads layers {', '.join(map(str, wrong))} and the target has layers 0 to {num_layers - 1}: "
            "it is the draft of another target"
        )


def _left_padded(prompts: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    longest = max(len(prompt) for prompt in prompts)
    ids = torch.zeros(len(prompts), longest, dtype=torch.long)
    lengths = torch.tensor([len(prompt) for prompt in prompts])
    for row, prompt in enumerate(prompts):
        ids[row, longest - len(prompt) :] = torch.tensor(prompt)
    positions = torch.arange(longest) - (longest - lengths).unsqueeze(1)
    valid = positions >= 0
    return ids.to(device), positions.clamp(min=0).to(device), valid.to(device)
