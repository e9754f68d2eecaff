"""The sum of a step's gradients is the same to the last bit however its packs are shared out."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dspark_train.trainer.gradients import GradientSum

pytestmark = pytest.mark.torch
CPU = torch.device("cpu")
NUM_PACKS = 7
SHAPES = [(50, 30), (17,), (1, 5)]


class Others:
    """A group whose other ranks have these sums already."""

    def __init__(self, sums: list[torch.Tensor]) -> None:
        self.world_size = 1 + len(sums)
        self._sums = sums

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        for other in self._sums:
            values += other
        return values


def gradients(pack: int) -> list[torch.Tensor]:
    drawn = torch.Generator().manual_seed(pack)
    return [
        torch.randn(shape, generator=drawn) * 10.0 ** torch.randint(-6, 3, (1,), generator=drawn) for shape in SHAPES
    ]


def rank_sum(packs: list[int]) -> GradientSum:
    weights = [torch.zeros(shape, requires_grad=True) for shape in SHAPES]
    total = GradientSum(weights, CPU)
    for pack in packs:
        for weight, gradient in zip(weights, gradients(pack), strict=True):
            weight.grad = gradient.clone()
        total.add()
    return total


def exchanged(shares: list[list[int]]) -> list[torch.Tensor]:
    first, *others = [rank_sum(share) for share in shares]
    first.exchange(Others([total for other in others for _, total in other._buckets]))
    return [weight.grad for weight in first._weights]


@settings(max_examples=30, deadline=None, derandomize=True)
@given(st.permutations(range(NUM_PACKS)), st.lists(st.integers(0, NUM_PACKS), min_size=0, max_size=3))
def test_any_order_and_any_shares_give_the_same_bits(order, cuts):
    edges = [0, *sorted(cuts), NUM_PACKS]
    shares = [list(order[a:b]) for a, b in pairwise(edges)]
    for mine, want in zip(exchanged(shares), exchanged([list(range(NUM_PACKS))]), strict=True):
        assert torch.equal(mine, want)


def test_the_sum_is_that_of_float64():
    want = [
        sum(parts, torch.zeros(())).float()
        for parts in zip(*([g.double() for g in gradients(p)] for p in range(3)), strict=True)
    ]
    for mine, exact in zip(exchanged([[0, 1, 2]]), want, strict=True):
        assert torch.equal(mine, exact)


def test_a_weight_without_a_gradient_has_one_of_zero_and_the_next_step_begins_anew():
    total = rank_sum([])
    total.exchange(Others([]))
    assert all(not weight.grad.any() for weight in total._weights)
    total._weights[0].grad = torch.ones(SHAPES[0])
    total.add()
    total.clear()
    total.exchange(Others([]))
    assert not total._weights[0].grad.any()
