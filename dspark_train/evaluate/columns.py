"""Keys and values of sequences that grow by different lengths, in shared columns of one cache.

Every row of a batch gets a column for each token that is run, also for those that are refused afterwards: these are
marked, and no later query sees them. When they are many, the columns are moved together.
"""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import DynamicCache

MAX_WASTED_FRAC = 0.5


class Columns:
    """The cache of a batch. Its tensors: [rows, heads, columns, head size] of each layer.

    valid: [rows, columns], False for padding and refused tokens. positions: [rows, columns], each token's in its
    sequence.
    """

    def __init__(self, num_rows: int, device: torch.device) -> None:
        self.cache = DynamicCache()
        self.valid = torch.zeros(num_rows, 0, dtype=torch.bool, device=device)
        self.positions = torch.zeros(num_rows, 0, dtype=torch.long, device=device)

    def mask(
        self, positions: Tensor, valid: Tensor | None = None, *, causal: bool = True, window: int | None = None
    ) -> Tensor:
        """What new tokens see: [rows, 1, new, columns + new], True where seen.

        positions: [rows, new]. valid: [rows, new], all where None. window: a token sees so many, itself included. A
        token always sees itself, so that no row of attention is empty.
        """
        num_new = positions.shape[1]
        valid = torch.ones_like(positions, dtype=torch.bool) if valid is None else valid
        itself = torch.eye(num_new, dtype=torch.bool, device=positions.device)
        order = itself.new_ones(num_new, num_new).tril() if causal else itself.new_ones(num_new, num_new)
        new = (valid.unsqueeze(1) & order) | itself
        old = self.valid.unsqueeze(1).expand(-1, num_new, -1)
        seen = torch.cat([old, new], dim=2)
        if window is not None:
            keys = torch.cat([self.positions, positions], dim=1)
            seen = seen & (keys.unsqueeze(1) > positions.unsqueeze(2) - window)
        return seen.unsqueeze(1)

    def append(self, positions: Tensor, valid: Tensor | None = None) -> None:
        """Note the tokens that the cache was just given."""
        valid = torch.ones_like(positions, dtype=torch.bool) if valid is None else valid
        self.valid = torch.cat([self.valid, valid], dim=1)
        self.positions = torch.cat([self.positions, positions], dim=1)

    def refuse(self, kept: Tensor) -> None:
        """Mark the newest columns: kept: [rows, newest], False for tokens that were refused."""
        num_new = kept.shape[1]
        self.valid = torch.cat([self.valid[:, :-num_new], self.valid[:, -num_new:] & kept], dim=1)

    def drop_newest(self, num_columns: int) -> None:
        if num_columns:
            self.cache.crop(-num_columns)
            self.valid, self.positions = self.valid[:, :-num_columns], self.positions[:, :-num_columns]

    def keep_rows(self, rows: Tensor) -> None:
        """Leave out every other row. rows: their indices."""
        self.cache.batch_select_indices(rows)
        self.valid, self.positions = self.valid[rows], self.positions[rows]

    def compact(self) -> None:
        """Move valid columns together where more than half of all are not; their order stays."""
        longest = int(self.valid.sum(dim=1).max())
        if longest > (1 - MAX_WASTED_FRAC) * self.valid.shape[1]:
            return
        order = (~self.valid).long().argsort(dim=1, stable=True)[:, :longest]
        for layer in self.cache.layers:
            index = order[:, None, :, None].expand(-1, layer.keys.shape[1], -1, layer.keys.shape[3])
            layer.keys, layer.values = layer.keys.gather(2, index), layer.values.gather(2, index)
        self.valid, self.positions = self.valid.gather(1, order), self.positions.gather(1, order)
