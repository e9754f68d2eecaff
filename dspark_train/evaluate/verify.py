"""Which drafted tokens stand, and what follows them: lossless verification, greedy and by rejection sampling.

Rejection sampling as in "Fast Inference from Transformers via Speculative Decoding" (arXiv 2211.17192, algorithm 1):
what is emitted is distributed as the target's own samples are. All randomness comes in as uniform numbers.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Verified(NamedTuple):
    """num_accepted: [rows], of the drafted tokens. next_ids: [rows], the target's own token after those."""

    num_accepted: Tensor
    next_ids: Tensor


def verify_greedy(draft_ids: Tensor, target_logits: Tensor) -> Verified:
    """Accept while a drafted token is the target's most likely one.

    draft_ids: [rows, drafted]. target_logits: [rows, drafted + 1, vocabulary], of the positions that those follow.
    """
    target_ids = target_logits.argmax(dim=-1)
    return _first_refused(draft_ids == target_ids[:, :-1], target_ids)


def verify_sampled(draft_ids: Tensor, draft_probs: Tensor | None, target_probs: Tensor, uniforms: Tensor) -> Verified:
    """Accept a drafted token with probability min(1, p/q); at the first refusal, sample from max(0, p - q).

    draft_probs: [rows, drafted, vocabulary], what each token was drawn from; None where it was the most likely one
    (q is 1 there). target_probs: [rows, drafted + 1, vocabulary]. uniforms: [rows, drafted + 1] in [0, 1).
    """
    num_drafted = draft_ids.shape[1]
    index = draft_ids.unsqueeze(-1)
    p = target_probs[:, :-1].gather(-1, index).squeeze(-1)
    q = torch.ones_like(p) if draft_probs is None else draft_probs.gather(-1, index).squeeze(-1)
    num_accepted = (uniforms[:, :-1] * q < p).long().cumprod(dim=1).sum(dim=1)
    rows = torch.arange(len(draft_ids), device=draft_ids.device)
    refused_at = num_accepted.clamp(max=num_drafted - 1)
    weights = target_probs[rows, num_accepted]
    if draft_probs is None:
        proposed = torch.zeros_like(weights).scatter_(1, draft_ids[rows, refused_at].unsqueeze(1), 1.0)
    else:
        proposed = draft_probs[rows, refused_at]
    all_accepted = (num_accepted == num_drafted).unsqueeze(1)
    residual = torch.where(all_accepted, weights, (weights - proposed).clamp(min=0))
    # p = q to the last bit leaves nothing; a refusal is then itself a rounding error
    residual = torch.where(residual.sum(dim=1, keepdim=True) > 0, residual, weights)
    return Verified(num_accepted, draw(residual, uniforms[:, -1]))


def draw(weights: Tensor, uniforms: Tensor) -> Tensor:
    """Sample an index by inverting the distribution function. weights: [..., n], not normalised. uniforms: [...]."""
    summed = weights.double().cumsum(dim=-1)
    at = (uniforms.double() * summed[..., -1]).unsqueeze(-1)
    return torch.searchsorted(summed, at, right=True).squeeze(-1).clamp(max=weights.shape[-1] - 1)


def _first_refused(matches: Tensor, target_ids: Tensor) -> Verified:
    num_accepted = matches.long().cumprod(dim=1).sum(dim=1)
    return Verified(num_accepted, target_ids.gather(1, num_accepted.unsqueeze(1)).squeeze(1))
