"""The attention of a draft's layer, run from the layer's own projections against a cache of our own."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention


def keys_and_values(attention: Any, hidden: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Keys, rotated, and values of tokens: [rows, heads, tokens, head size] of ``hidden`` [rows, tokens, hidden]."""
    keys = _heads(attention.k_proj(hidden), attention.head_dim, getattr(attention, "k_norm", None))
    return rotated(keys, cos, sin), _heads(attention.v_proj(hidden), attention.head_dim)


def attend(attention: Any, hidden: Tensor, cos: Tensor, sin: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Any:
    """Attention of ``hidden`` [rows, tokens, hidden] over keys and values; mask: True where seen."""
    queries = _heads(attention.q_proj(hidden), attention.head_dim, getattr(attention, "q_norm", None))
    seen = scaled_dot_product_attention(
        rotated(queries, cos, sin), keys, values, attn_mask=mask, scale=attention.scaling, enable_gqa=True
    )
    return attention.o_proj(seen.transpose(1, 2).flatten(2))


def rotated(states: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding of the first ``cos.shape[-1]`` of each head; the rest is left as it is.

    states: [rows, heads, tokens, head size]. cos, sin: [rows, tokens, rotated size].
    """
    size = cos.shape[-1]
    turned, rest = states[..., :size], states[..., size:]
    first, second = turned.chunk(2, dim=-1)
    turned = turned * cos.unsqueeze(1) + torch.cat((-second, first), dim=-1) * sin.unsqueeze(1)
    return torch.cat((turned, rest), dim=-1) if rest.shape[-1] else turned


def _heads(states: Tensor, head_dim: int, norm: Any = None) -> Tensor:
    split = states.unflatten(-1, (-1, head_dim))
    return (split if norm is None else norm(split)).transpose(1, 2)
