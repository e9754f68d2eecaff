"""Muon's orthogonalisation in float32 where it runs on CPU.

torch's Muon computes it in bfloat16 whatever the hardware. A CPU without such arithmetic emulates it: 76 of the 78
seconds of a step were seen to go there. In float32 it is quick everywhere, and what an order of additions changes stays
as small as in the gradients.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.optim import _muon

_original = _muon._zeropower_via_newtonschulz


def use_float32_on_cpu() -> None:
    """Have every Muon of this process do so; twice is fine."""
    _muon._zeropower_via_newtonschulz = _orthogonalised


def _orthogonalised(
    gradient: torch.Tensor, coefficients: tuple[float, float, float], num_steps: int, least_norm: float, **more: Any
) -> torch.Tensor:
    if gradient.device.type != "cpu":
        return _original(gradient, coefficients, num_steps, least_norm, **more)
    return newton_schulz(gradient, coefficients, num_steps, least_norm)


def newton_schulz(
    matrix: torch.Tensor, coefficients: tuple[float, float, float], num_steps: int, least_norm: float
) -> torch.Tensor:
    """The nearest semi-orthogonal matrix to ``matrix`` [rows, columns], roughly, in its own type.

    A quintic iteration X <- a X + (b G + c G G) X with G = X X^T, which drives all singular values towards 1.
    coefficients: (a, b, c). Source: K. Jordan and others, "Muon: an optimizer for hidden layers", 2024.
    """
    a, b, c = coefficients
    x = matrix.T if matrix.size(0) > matrix.size(1) else matrix
    x = x / x.norm().clamp(min=least_norm)
    for _ in range(num_steps):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.T if matrix.size(0) > matrix.size(1) else x
