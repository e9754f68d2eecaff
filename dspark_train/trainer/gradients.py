"""The replicas' gradients of one step, added up over packs and ranks.

On CPU the sums are kept in float64: then they do not depend on how the packs are shared out, not in the last bit, since
what an order of additions changes is far below what float32 keeps. In float32 the order shows, and Muon, which works in
bfloat16, makes 1e-5 of it in the loss within 64 steps (AdamW 1e-7). On CUDA, where kernels add in any order anyway and
memory is dear, gradients stay in float32.

torch's DDP does not fit here: ranks have different numbers of packs, and it exchanges its bucket order in the midst of
a forward pass, where a rank with fewer passes is not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from dspark_train.trainer.process_group import ProcessGroup

BUCKET_NUMEL = 16 << 20
"""Gradients are exchanged in pieces of so many numbers."""
CHUNK_NUMEL = 1 << 18
"""Gradients are widened in pieces that stay in the cache: 7 times as fast as adding float32 to float64 directly."""


class GradientSum:
    """Sums the gradients of ``weights``; `add` after every backward pass, `exchange` once a step."""

    def __init__(self, weights: Sequence[torch.Tensor], device: torch.device) -> None:
        self._weights = list(weights)
        self._wide = torch.zeros(CHUNK_NUMEL, dtype=torch.float64) if device.type == "cpu" else None
        dtype = torch.float64 if self._wide is not None else torch.float32
        self._buckets = [
            (bucket, torch.zeros(sum(w.numel() for w in bucket), dtype=dtype, device=device))
            for bucket in _buckets(self._weights)
        ]

    def add(self) -> None:
        """Take the gradients of a backward pass into the sums."""
        if self._wide is None:
            return  # they add up where they are
        for bucket, total in self._buckets:
            for weight, part in zip(bucket, total.split([w.numel() for w in bucket]), strict=True):
                if weight.grad is not None:
                    self._add(part, weight.grad.flatten())
                    weight.grad = None

    def _add(self, total: torch.Tensor, gradient: torch.Tensor) -> None:
        assert self._wide is not None
        for part, narrow in zip(total.split(CHUNK_NUMEL), gradient.split(CHUNK_NUMEL), strict=True):
            part += self._wide[: len(narrow)].copy_(narrow)

    def exchange(self, group: ProcessGroup) -> None:
        """Make every weight's gradient the sum over all passes of all ranks, and begin anew.

        A weight that no pass used has a gradient of zero, on one rank as on many.
        """
        for bucket, total in self._buckets:
            parts = total.split([weight.numel() for weight in bucket])
            if self._wide is None:
                for weight, part in zip(bucket, parts, strict=True):
                    part.copy_(weight.grad.flatten()) if weight.grad is not None else part.zero_()
            group.sum(total)
            for weight, part in zip(bucket, parts, strict=True):
                weight.grad = part.to(weight.dtype).view_as(weight)
            if self._wide is not None:
                total.zero_()

    def clear(self) -> None:
        """Forget a step that was begun."""
        for _, total in self._buckets:
            total.zero_()


def _buckets(weights: Sequence[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """The weights in order, in lists of at most BUCKET_NUMEL numbers (a larger one alone)."""
    bucket: list[torch.Tensor] = []
    numel = 0
    for weight in weights:
        if bucket and numel + weight.numel() > BUCKET_NUMEL:
            yield bucket
            bucket, numel = [], 0
        bucket.append(weight)
        numel += weight.numel()
    if bucket:
        yield bucket
