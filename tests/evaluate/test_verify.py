"""Lossless verification: greedy takes the target's choice, sampling leaves the target's distribution as it is."""

import pytest
import torch

from dspark_train.evaluate.verify import draw, verify_greedy, verify_sampled

pytestmark = pytest.mark.torch


def one_hot(ids, size=5):
    return torch.nn.functional.one_hot(torch.tensor(ids), size).float()


@pytest.mark.parametrize(
    ("drafted", "own", "num_accepted", "next_id"),
    [
        ([1, 2, 3], [1, 2, 3, 4], 3, 4),
        ([1, 2, 0], [1, 2, 3, 4], 2, 3),
        ([0, 2, 3], [1, 2, 3, 4], 0, 1),
        ([1, 0, 3], [1, 2, 3, 4], 1, 2),
    ],
)
def test_greedy_accepts_up_to_the_first_difference(drafted, own, num_accepted, next_id):
    verified = verify_greedy(torch.tensor([drafted]), one_hot(own).unsqueeze(0))
    assert (int(verified.num_accepted), int(verified.next_ids)) == (num_accepted, next_id)


def test_rows_are_verified_each_for_itself():
    verified = verify_greedy(torch.tensor([[1, 2], [3, 3]]), one_hot([[1, 2, 0], [1, 2, 0]]))
    assert verified.num_accepted.tolist() == [2, 0]
    assert verified.next_ids.tolist() == [0, 1]


P = torch.tensor([[0.5, 0.3, 0.15, 0.05], [0.1, 0.2, 0.3, 0.4], [0.25, 0.25, 0.25, 0.25]])
Q = torch.tensor([[0.2, 0.6, 0.1, 0.1], [0.4, 0.1, 0.1, 0.4]])
NUM = 200_000


@pytest.mark.parametrize("draft_samples", [True, False])
def test_what_is_emitted_first_is_distributed_as_the_target_samples(draft_samples):
    drawn = torch.Generator().manual_seed(1)
    target = P.expand(NUM, 3, 4)
    if draft_samples:
        probs = Q.expand(NUM, 2, 4)
        drafted = draw(probs, torch.rand(NUM, 2, generator=drawn))
    else:
        probs, drafted = None, torch.tensor([1, 3]).expand(NUM, 2)
    verified = verify_sampled(drafted, probs, target, torch.rand(NUM, 3, generator=drawn))
    first = torch.where(verified.num_accepted > 0, drafted[:, 0], verified.next_ids)
    torch.testing.assert_close(first.bincount(minlength=4) / NUM, P[0], atol=0.006, rtol=0)
    # the second token, where the first one stood: after a refusal it is another round's
    stood = verified.num_accepted > 0
    second = torch.where(verified.num_accepted > 1, drafted[:, 1], verified.next_ids)[stood]
    torch.testing.assert_close(second.bincount(minlength=4) / len(second), P[1], atol=0.01, rtol=0)


def test_a_token_stands_as_often_as_the_two_distributions_overlap():
    drawn = torch.Generator().manual_seed(2)
    drafted = draw(Q.expand(NUM, 2, 4), torch.rand(NUM, 2, generator=drawn))
    verified = verify_sampled(drafted, Q.expand(NUM, 2, 4), P.expand(NUM, 3, 4), torch.rand(NUM, 3, generator=drawn))
    overlap = torch.minimum(P[0], Q[0]).sum()
    torch.testing.assert_close((verified.num_accepted > 0).float().mean(), overlap, atol=0.006, rtol=0)


def test_a_draft_that_equals_the_target_always_stands():
    verified = verify_sampled(
        torch.tensor([[2, 1]]), P[:2].unsqueeze(0), P.unsqueeze(0), torch.tensor([[0.999, 0.999, 0.1]])
    )
    assert verified.num_accepted.tolist() == [2]


def test_a_token_that_the_target_never_says_never_stands():
    target = torch.tensor([[[0.0, 1.0], [0.5, 0.5]]])
    verified = verify_sampled(torch.tensor([[0]]), None, target, torch.tensor([[0.0, 0.3]]))
    assert (verified.num_accepted.tolist(), verified.next_ids.tolist()) == ([0], [1])


@pytest.mark.parametrize(("uniform", "index"), [(0.0, 1), (0.49, 1), (0.5, 3), (0.999999, 3)])
def test_drawing_never_gives_what_has_no_weight(uniform, index):
    assert int(draw(torch.tensor([0.0, 2.0, 0.0, 2.0, 0.0]), torch.tensor(uniform))) == index
