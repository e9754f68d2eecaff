"""Is what the store delivered fit to train on? One pass over a sample's hidden states, and a look at its tokens.

Non-finite values poison training. Zeros or repeated rows do worse: the loss looks fine and the served draft accepts
nothing (a cache-block mismatch in the engine makes them), so finite is not enough.
"""

from __future__ import annotations

import numpy as np
import torch


def what_is_wrong(
    hidden: torch.Tensor, token_ids: np.ndarray, expected_ids: np.ndarray, sums: torch.Tensor | None = None
) -> str:
    """Why a sample must not be trained on, or "".

    hidden: [tokens, layers, hidden]; token_ids: int64 [tokens], as stored; expected_ids: as in the data set; sums:
    ``hidden.sum(-1)``, where it is known already.
    """
    if token_ids.shape != expected_ids.shape or not np.array_equal(token_ids, expected_ids):
        differing = np.flatnonzero(token_ids != expected_ids) if token_ids.shape == expected_ids.shape else [0]
        return f"token ids differ from the data set's from token {int(differing[0])} on"
    # Row sums show every kind of damage and are the one fast pass (10-14 GB/s from memory on one core, isfinite below
    # 1); whatever they point at is then looked at itself, so that an odd sum condemns nothing.
    sums = (hidden.sum(-1) if sums is None else sums).float()
    odd = ~torch.isfinite(sums)
    if odd.any() and (bad := ~torch.isfinite(hidden[odd.any(-1)]).all(-1).all(0)).any():
        return f"hidden states are not finite in {_layers(bad)}"
    if (sums == sums[:1]).all(0).any() and (bad := _constant(hidden)).any():
        return f"hidden states are constant in {_layers(bad)}"
    odd = sums == 0
    if odd.any() and (zero := (hidden[odd.any(-1)] == 0).all(-1)).any():
        return f"hidden states of {int(zero.any(-1).sum())} tokens are zero in {_layers(zero.any(0))}"
    return ""


def _constant(hidden: torch.Tensor) -> torch.Tensor:
    """Which layers say the same of every token; of a single token, those where all columns are equal. bool [layers]."""
    if hidden.shape[0] == 1:
        return hidden[0].amax(-1) == hidden[0].amin(-1)
    return (hidden[1:] == hidden[:1]).all(-1).all(0)


def _layers(bad: torch.Tensor) -> str:
    """bad: bool [layers]."""
    return "stored layers " + ", ".join(str(int(index)) for index in bad.nonzero().flatten())
