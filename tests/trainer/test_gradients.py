"""The sum of a step's gradients is the same to the last bit however its packs are shared out."""

import gc
import weakref
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
        backward(weights, gradients(pack))
    return total


def backward(weights: list[torch.Tensor], wanted: list[torch.Tensor]) -> None:
    """A pass whose gradients are these."""
    sum((weight * gradient).sum() for weight, gradient in zip(weights, wanted, strict=True)).backward()


def exchanged(shares: list[list[int]]) -> list[torch.Tensor]:
    first, *others = [rank_sum(share) for share in shares]
    first.exchange(Others([total for other in others for _, total in other._buckets]))
    return [weight.grad for weight in weights_of(first)]


def weights_of(total: GradientSum) -> list[torch.Tensor]:
    return [weight for bucket, _ in total._buckets for weight in bucket]


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
    weights = weights_of(total)
    total.exchange(Others([]))
    assert all(not weight.grad.any() for weight in weights)
    total.clear()
    backward(weights[:1], [torch.ones(SHAPES[0])])
    total.clear()
    total.exchange(Others([]))
    assert not weights[0].grad.any()


def test_a_pass_leaves_no_gradient_but_in_the_sum_and_the_optimizers_read_it_there():
    total = rank_sum([0])
    ((weights, sums),) = total._buckets
    assert all(weight.grad is None for weight in weights)
    total.exchange(Others([]))
    start, end = sums.data_ptr(), sums.data_ptr() + sums.nbytes // 2
    assert all(start <= weight.grad.data_ptr() < end for weight in weights)


def test_a_sum_of_many_chunks_is_narrowed_in_its_own_memory(monkeypatch):
    monkeypatch.setattr("dspark_train.trainer.gradients.CHUNK_NUMEL", 64)
    want = exchanged([[0, 1]])
    monkeypatch.undo()
    for mine, whole in zip(want, exchanged([[0, 1]]), strict=True):
        assert torch.equal(mine, whole)


def test_the_memory_of_a_state_that_is_dropped_is_free_at_once():
    total = rank_sum([0])
    seen = [weakref.ref(weight) for weight in weights_of(total)]
    gc.disable()
    try:
        del total
        assert not any(ref() is not None for ref in seen)
    finally:
        gc.enable()
