"""Where the randomness of an evaluation comes from: each prompt has numbers of its own, whatever it is batched with."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dspark_train.evaluate.verify import draw


class Dice:
    """Uniform numbers for the rows of a batch. seeds: one a row."""

    def __init__(self, seeds: Sequence[int], device: torch.device) -> None:
        self._generators = [torch.Generator().manual_seed(seed) for seed in seeds]
        self._device = device

    def uniforms(self, num_each: int) -> Tensor:
        """[rows, num_each] in [0, 1), the same on every device."""
        rows = [torch.rand(num_each, generator=generator) for generator in self._generators]
        return torch.stack(rows).to(self._device)

    def keep_rows(self, rows: Tensor) -> None:
        self._generators = [self._generators[row] for row in rows.tolist()]


class Chooser:
    """How a token is chosen from logits: the most likely one at temperature 0, else a sample.

    temperature: above 0. With ``dice`` None the most likely token is taken, and no probabilities are kept.
    """

    def __init__(self, temperature: float, dice: Dice | None) -> None:
        self._temperature, self._dice = temperature, dice

    def choose(self, logits: Tensor) -> tuple[Tensor, Tensor | None]:
        """Ids [rows] of logits [rows, vocabulary], and the probabilities they were drawn from."""
        if self._dice is None:
            return logits.argmax(dim=-1), None
        probs = probabilities(logits, self._temperature)
        return draw(probs, self._dice.uniforms(1).squeeze(1)), probs


def probabilities(logits: Tensor, temperature: float) -> Tensor:
    """What tokens are sampled from, in float32."""
    return torch.softmax(logits.float() / temperature, dim=-1)
