"""Acceptance is counted as vLLM counts it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspark_train.evaluate.acceptance import Acceptance, bucket_of, macro_accept_len, of_rounds, total


def test_three_verifications_of_four_drafted_tokens():
    part = of_rounds([4, 0, 2], num_positions=4, num_tokens=9)
    assert part.per_position_counts == (2, 2, 1, 1)
    assert part.accept_len == 1 + 6 / 3
    assert part.per_position == (2 / 3, 2 / 3, 1 / 3, 1 / 3)
    assert part.conditional == (2 / 3, 1.0, 0.5, 1.0)


def test_nothing_drafted_has_no_acceptance_length():
    part = of_rounds([], 4, 1)
    assert part.accept_len is None
    assert part.per_position == ()
    assert of_rounds([0], 2, 1).conditional == (0.0, None)


@given(st.lists(st.lists(st.integers(0, 5), max_size=8), max_size=6))
def test_the_sum_of_prompts_is_as_if_it_were_one(prompts):
    summed = total(of_rounds(rounds, 5, 0) for rounds in prompts)
    together = of_rounds([n for rounds in prompts for n in rounds], 5, 0)
    assert summed.num_drafts == together.num_drafts
    assert summed.num_accepted == together.num_accepted
    assert list(summed.per_position) == sorted(summed.per_position, reverse=True)
    assert summed.accept_len is None or 1 <= summed.accept_len <= 6


def test_each_domain_weighs_the_same_whatever_its_size():
    domains = {"a": of_rounds([1] * 90, 2, 90), "b": of_rounds([0] * 10, 2, 10), "c": Acceptance()}
    assert macro_accept_len(domains) == 1.5
    assert macro_accept_len({}) is None


@pytest.mark.parametrize(("length", "bucket"), [(1, "<=128"), (128, "<=128"), (129, "<=512"), (513, ">512")])
def test_a_length_falls_into_the_smallest_bucket_that_holds_it(length, bucket):
    assert bucket_of(length, (512, 128)) == bucket
