"""Is what the store delivered fit to train on? One pass over a sample's hidden states, and a look at its tokens.

Non-finite values poison training. Zeros or repeated rows do worse: the loss looks fine and the served draft accepts
nothing (a cache-block mismatch in the engine makes them), so finite is not enough.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from dspark_train.trainer.peaks import Bits, are_finite, peaks_of


def what_is_wrong(
    hidden: torch.Tensor, token_ids: np.ndarray, expected_ids: np.ndarray, peaks: Bits | None = None
) -> str:
    """Why a sample must not be trained on, or "".

    hidden: [tokens, layers, hidden]; token_ids: int64 [tokens], as stored; expected_ids: as in the data set; peaks:
    ``peaks_of(hidden)``, where they are known already.
    """
    if token_ids.shape != expected_ids.shape or not np.array_equal(token_ids, expected_ids):
        differing = np.flatnonzero(token_ids != expected_ids) if token_ids.shape == expected_ids.shape else [0]
        return f"token ids differ from the data set's from token {int(differing[0])} on"
    # Peaks show every kind of damage. What is only likely by them is looked at: no coincidence condemns a sample.
    peaks = peaks_of(hidden) if peaks is None else peaks
    if not (finite := are_finite(peaks, hidden.dtype)).all():
        return f"hidden states are not finite in {_layers((~finite).any(0))}"
    if (peaks == peaks[:1]).all(0).any() and (bad := _constant(hidden)).any():
        return f"hidden states are constant in {_layers(bad)}"
    if (zero := peaks == 0).any():
        return f"hidden states of {int(zero.any(-1).sum())} tokens are zero in {_layers(zero.any(0))}"
    return ""


def _constant(hidden: torch.Tensor) -> npt.NDArray[np.bool_]:
    """Which layers say the same of every token; of a single token, those where all columns are equal. bool [layers]."""
    if hidden.shape[0] == 1:
        return np.asarray(hidden[0].amax(-1) == hidden[0].amin(-1))
    return np.asarray((hidden[1:] == hidden[:1]).all(-1).all(0))


def _layers(bad: npt.ArrayLike) -> str:
    """bad: [layers]."""
    return "stored layers " + ", ".join(str(index) for index in np.flatnonzero(bad))
