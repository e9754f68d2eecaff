"""What a pass of the target over a number of tokens takes on this machine."""

from __future__ import annotations

import time
from statistics import median

import torch

from dspark_train.evaluate.columns import Columns
from dspark_train.evaluate.target import Target
from dspark_train.evaluate.trimming import StepCost

SIZES_TOKENS = (1, 8, 32, 128, 512)
NUM_REPEATS = 3


def measure_step_cost(target: Target) -> StepCost:
    """The median of a few passes at each size, the first of all left out; without a context before the tokens."""
    _pass_ms(target, SIZES_TOKENS[0])
    return StepCost(
        tuple((float(size), median(_pass_ms(target, size) for _ in range(NUM_REPEATS))) for size in SIZES_TOKENS)
    )


def _pass_ms(target: Target, num_tokens: int) -> float:
    ids = torch.zeros(1, num_tokens, dtype=torch.long, device=target.device)
    positions = torch.arange(num_tokens, device=target.device).unsqueeze(0)
    started_s = time.perf_counter()
    target.run(Columns(1, target.device), ids, positions).logits.sum().item()
    return (time.perf_counter() - started_s) * 1000
