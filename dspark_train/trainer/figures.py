"""What a model tells of one pack, in one form for all algorithms: pairs of NAME_sum and NAME_total.

speculators' models give such pairs, but for mtp, which gives single losses and no accuracy: its figures are made here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

Figures = Mapping[str, Any]
FIRST_TARGET = 2
"""mtp reads tokens t and t + 1 and predicts t + 2 in its first step."""


def mtp_figures(
    logits: Sequence[torch.Tensor], input_ids: torch.Tensor, loss_mask: torch.Tensor, sums: Figures
) -> Figures:
    """loss, loss_step_K, and full_acc_K: how often all predictions of the steps 0 .. K were right.

    logits: one a step, [1, tokens, vocabulary]; input_ids, loss_mask: [1, seq_len]; sums: what the model gives.
    """
    figures = {name: value for name, value in sums.items() if name.endswith(("_sum", "_total"))}
    for name in sums.keys() - figures.keys():
        figures |= {f"{name}_sum": sums[name], f"{name}_total": torch.ones(())}
    are_right: torch.Tensor | None = None
    for step, scores in enumerate(logits):
        place = slice(step + FIRST_TARGET, step + FIRST_TARGET + scores.shape[1])
        is_right = scores.argmax(-1) == input_ids[:, place]
        are_right = is_right if are_right is None else are_right & is_right
        is_trained = loss_mask[:, place] != 0
        figures |= {f"full_acc_{step}_sum": (are_right & is_trained).sum(), f"full_acc_{step}_total": is_trained.sum()}
    return figures


def accept_len(figures: Mapping[str, float]) -> float:
    """Tokens that a pass of the target yields, its own included; 1 where nothing is known.

    By sampling (``accept_len``), else by greedy matches (``eal``), where a model gives these. Else 1 + the sum over K
    of the share of places where the first K + 1 proposals were right: ``full_acc_K`` of eagle3 and mtp is that share;
    of peagle there are only accuracies of single positions, which are multiplied as if they were independent.
    """
    for name in ("accept_len", "eal"):
        if name in figures:
            return figures[name]
    length, share = 1.0, 1.0
    for place in range(len(figures)):
        if f"full_acc_{place}" in figures:
            length += figures[f"full_acc_{place}"]
        elif f"position_{place}_acc" in figures:
            share *= figures[f"position_{place}_acc"]
            length += share
        else:
            break
    return length
