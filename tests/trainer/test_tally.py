"""Figures are quotients of sums over all packs; one collective carries them all."""

import pytest
import torch

from dspark_train.trainer.tally import Tally

pytestmark = pytest.mark.torch


class Two:
    """A group of two ranks, both in this process: each is given what the other had."""

    def __init__(self, names: list[list[str]]) -> None:
        self.names, self.other, self.num_collectives = names, torch.zeros(()), 0

    def gather_objects(self, value):
        return self.names

    def sum(self, values):
        self.num_collectives += 1
        self.other, mine = values.clone(), values + self.other
        return mine


def sums(correct, total, extra=None):
    figures = {"position_0_acc_sum": torch.tensor(correct), "position_0_acc_total": torch.tensor(total)}
    return {
        **figures,
        **({"accept_len_sum": torch.tensor(extra), "accept_len_total": torch.tensor(1.0)} if extra else {}),
    }


def both(first: Tally, second: Tally, names: list[list[str]]) -> Tally:
    group = Two(names)
    first.exchange(group)
    second.exchange(group)
    assert group.num_collectives == 2
    return second


def test_losses_are_averaged_over_packs_and_figures_over_their_own_totals():
    one, two = Tally(3), Tally(3)
    one.add(0, torch.tensor(1.0), sums(1.0, 4.0, 2.0), b"\x01" * 32, 10)
    one.add(1, torch.tensor(2.0), sums(3.0, 4.0, 4.0), b"\x02" * 32, 20)
    two.add(2, torch.tensor(6.0), sums(0.0, 2.0, 3.0), bytes(range(32)), 30)
    names = sorted(sums(0.0, 0.0, 1.0))
    metrics = both(one, two, [names, names]).metrics()
    assert metrics["loss"] == 3.0
    assert metrics["position_0_acc"] == pytest.approx(4 / 10)
    assert metrics["accept_len"] == pytest.approx(3.0)
    assert metrics["tokens"] == 60
    assert two.digests() == [b"\x01" * 32, b"\x02" * 32, bytes(range(32))]
    assert two.own_tokens == 30


def test_a_rank_without_packs_exchanges_the_same_figures():
    one, idle = Tally(1), Tally(1)
    one.add(0, torch.tensor(5.0), sums(1.0, 2.0), bytes(32), 4)
    metrics = both(one, idle, [sorted(sums(0.0, 0.0)), []]).metrics()
    assert (metrics["loss"], metrics["position_0_acc"], metrics["tokens"]) == (5.0, 0.5, 4)


def test_a_pack_of_given_up_samples_counts_for_the_loss_alone():
    one, two = Tally(2), Tally(2)
    one.add(0, torch.tensor(4.0), sums(1.0, 2.0), bytes(32), 4)
    two.add(1, torch.tensor(0.0), sums(0.0, 1.0), bytes(32), 0)
    metrics = both(one, two, [sorted(sums(0.0, 0.0)), []]).metrics()
    assert (metrics["loss"], metrics["position_0_acc"]) == (2.0, 0.5)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_every_rank_learns_which_packs_have_no_finite_loss(bad):
    one, two = Tally(3), Tally(3)
    one.add(0, torch.tensor(1.0), sums(1.0, 2.0), bytes(32), 4)
    two.add(2, torch.tensor(bad), sums(1.0, 2.0), bytes(32), 4)
    names = sorted(sums(0.0, 0.0))
    assert both(two, one, [names, names]).not_finite() == [2]


def test_without_an_acceptance_length_it_is_the_greedy_one_or_one():
    greedy, none = Tally(1), Tally(1)
    greedy.add(0, torch.tensor(1.0), {"eal_sum": torch.tensor(3.0), "eal_total": torch.tensor(2.0)}, bytes(32), 1)
    none.add(0, torch.tensor(1.0), {}, bytes(32), 1)
    for tally, names, want in ((greedy, ["eal_sum", "eal_total"], 1.5), (none, [], 1.0)):
        tally.exchange(Two([names, []]))
        assert tally.metrics()["accept_len"] == want
