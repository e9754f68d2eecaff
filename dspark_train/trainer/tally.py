"""The figures of a unit, added up over its packs and ranks in one collective.

speculators' models give each figure as a pair, `NAME_sum` and `NAME_total`; what is logged is the quotient of the sums.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from dspark_train.trainer.figures import accept_len
from dspark_train.trainer.process_group import ProcessGroup

DIGEST_BYTES = 32
_SUM, _TOTAL = "_sum", "_total"


class Tally:
    """Losses, sums and digests of one unit's packs; each pack is added on one rank."""

    def __init__(self, num_packs: int) -> None:
        self._losses = torch.zeros(num_packs, dtype=torch.float64)
        self._digests = torch.zeros(num_packs, DIGEST_BYTES, dtype=torch.float64)
        self._sums: dict[str, torch.Tensor] = {}
        self._num_tokens = torch.zeros(1, dtype=torch.float64)
        self.own_tokens = 0

    def add(self, pack: int, loss: torch.Tensor, sums: Mapping[str, torch.Tensor], digest: bytes, tokens: int) -> None:
        """A pack's loss and figures. digest: 32 bytes over its samples; tokens: how many it trains."""
        values = [torch.as_tensor(value, device=loss.device) for value in (loss, *sums.values())]
        loss_value, *figures = torch.stack([value.detach().double().reshape(()) for value in values]).cpu()
        self._losses[pack] = loss_value
        self._digests[pack] = torch.tensor(list(digest), dtype=torch.float64)
        self.own_tokens += tokens
        if tokens:  # a pack of given-up samples only would count as blocks that accepted nothing
            for name, figure in zip(sums, figures, strict=True):
                self._sums[name] = self._sums.get(name, _zero()) + figure

    def exchange(self, group: ProcessGroup) -> None:
        """Add up over the ranks, once, after every pack was added."""
        names = sorted({name for own in group.gather_objects(sorted(self._sums)) for name in own})
        self._num_tokens[0] = self.own_tokens
        parts = [
            self._losses,
            self._digests.flatten(),
            self._num_tokens,
            *(self._sums.get(n, _zero()).reshape(1) for n in names),
        ]
        flat = group.sum(torch.cat(parts))
        losses, digests, tokens, figures = flat.split([len(self._losses), self._digests.numel(), 1, len(names)])
        self._losses, self._digests, self._num_tokens = losses, digests.view_as(self._digests), tokens
        self._sums = dict(zip(names, figures, strict=True))

    def not_finite(self) -> list[int]:
        """Packs whose loss is NaN or infinite, after the exchange."""
        return [int(index) for index in (~torch.isfinite(self._losses)).nonzero().flatten()]

    def digests(self) -> list[bytes]:
        """Each pack's digest, after the exchange."""
        return [bytes(int(value) for value in row) for row in self._digests]

    def metrics(self) -> dict[str, float | int | str]:
        """After the exchange: loss (the mean over packs), accept_len, tokens, and every other figure of the model."""
        figures = {
            name.removesuffix(_SUM): float(value) / total if (total := self._total(name)) else 0.0
            for name, value in self._sums.items()
            if name.endswith(_SUM)
        }
        loss = float(self._losses.sum()) / len(self._losses)
        return {**figures, "loss": loss, "accept_len": accept_len(figures), "tokens": int(self._num_tokens)}

    def _total(self, name: str) -> float:
        return float(self._sums.get(name.removesuffix(_SUM) + _TOTAL, torch.ones(())))


def _zero() -> torch.Tensor:
    return torch.zeros((), dtype=torch.float64)
