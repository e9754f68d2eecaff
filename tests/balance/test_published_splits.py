"""The published splits of two machines with eight GPUs, from the rates seen at any one of them.

Published are throughputs of whole lines, X(n, k) = min(n e, T(k)) with e an engine's rate: one equation, two unknowns.
What they determine:

8xH200: 3+5 gives 6.82 and 4+4 gives 9.05, which is 2.27 and 2.26 an engine: engines hold both up, e = 2.26..2.27. Five
engines would then give 11.3; 5+3 gives 10.65, so three ranks train 10.65, which is 3.55 a rank, if it is they who hold
it up. At 3+5 and 4+4 the throughput does not determine what ranks can do (only T(5) >= 6.82, T(4) >= 9.05); it is seen
as a service rate there, 3.55 a rank.

8xB300: 3+5 gives 9.8, so e >= 3.27, and four engines give 13.1 or more; 4+4 gives 11.5, so T(4) = 11.5; 5+3 gives 10.3
with 16.3 or more from engines, so T(3) = 10.3. With T(5) >= T(4) > 9.8 it is engines that hold 3+5 up: e = 3.27. Ranks
do not scale: 3.43 each of three, 2.875 each of four. A rate seen at three ranks is 19 % above that seen at four, so one
split alone determines the other only to that. The staircase with a part that no rank shortens fits both:
1/T(k) = a/k + c gives a = 0.1216, c = 0.0566, so fixed_packs = c/a x step_packs.
"""

from __future__ import annotations

import math

import pytest

from dspark_train.balance.layout import Layout
from dspark_train.balance.model import Model, Rates
from dspark_train.balance.seen import Split

PACKS = 60
"""Divides evenly among 3, 4 and 5 ranks; the staircase is then the straight line that peers have."""
SPLITS = [Split(3, 5), Split(4, 4), Split(5, 3)]
EIGHT_GPUS = Layout(1, 1, tuple(8 - ranks for ranks in range(1, 8)), PACKS)
H200 = {Split(4, 4): 9.05, Split(5, 3): 10.65, Split(3, 5): 6.82}
B300 = {Split(4, 4): 11.5, Split(5, 3): 10.3, Split(3, 5): 9.8}
H200_ENGINE, H200_RANK = 9.05 / 4, 10.65 / 3
B300_ENGINE = 9.8 / 3
B300_A = 12 * (1 / 10.3 - 1 / 11.5)
B300_C = 1 / 11.5 - B300_A / 4


def b300_trains(num_ranks: int) -> float:
    return 1 / (B300_A / num_ranks + B300_C)


def model(engine: float, rank: float, fixed_packs: float = 0.0) -> Model:
    return Model(Rates((engine,) * 8, rank, PACKS, fixed_packs=fixed_packs))


def ranked(made: Model) -> list[Split]:
    return sorted(SPLITS, key=made.throughput, reverse=True)


@pytest.mark.parametrize("at", SPLITS, ids=Split.text)
def test_h200_from_the_rates_seen_at_any_split(at: Split) -> None:
    # An engine's rate is what it does where engines hold the line up; where they do not, its service rate is the same.
    engine = H200[at] / at.num_engines if at != Split(5, 3) else H200_ENGINE
    made = model(engine, H200_RANK)
    assert ranked(made)[0] == Split(5, 3)
    best = made.best(EIGHT_GPUS, at)
    assert best is not None
    assert best.first.split == Split(5, 3), "best of all seven splits, not of the three published ones alone"
    for split, published in H200.items():
        assert made.throughput(split) == pytest.approx(published, rel=0.01)


@pytest.mark.parametrize("rank", [H200_RANK, 4.5, 6.0, math.inf])
def test_h200_is_ranked_right_whatever_the_ranks_can_do_beyond_what_is_published(rank: float) -> None:
    # They train 10.65 at three; were it more, engines would hold 5+3 up at 11.3, 6 % above what was published.
    made = model(H200_ENGINE, rank)
    assert ranked(made)[0] == Split(5, 3)
    for split, published in H200.items():
        assert made.throughput(split) == pytest.approx(published, rel=0.07)


@pytest.mark.parametrize("at", SPLITS, ids=Split.text)
def test_b300_is_ranked_right_from_the_rates_seen_at_any_split(at: Split) -> None:
    made = model(B300_ENGINE, b300_trains(at.num_ranks) / at.num_ranks)
    assert ranked(made)[0] == Split(4, 4)
    best = made.best(EIGHT_GPUS, at)
    assert best is not None
    assert best.first.split == Split(4, 4)


@pytest.mark.parametrize("at", SPLITS, ids=Split.text)
def test_b300_where_one_split_determines_the_figure_it_is_within_a_tenth(at: Split) -> None:
    made = model(B300_ENGINE, b300_trains(at.num_ranks) / at.num_ranks)
    # Held up by engines, or by as many ranks as the rate was seen at. 3+5 is held up by engines in every case.
    determined = {at, Split(3, 5)}
    for split in determined:
        assert made.throughput(split) == pytest.approx(B300[split], rel=0.1)


def test_b300_where_it_is_not_determined_it_is_off_by_what_the_ranks_lose_to_one_another() -> None:
    # From three ranks, four are thought to train 13.7, more than the 13.07 of four engines: 14 % above 11.5.
    assert model(B300_ENGINE, 10.3 / 3).throughput(Split(4, 4)) == pytest.approx(11.5 * 1.136, rel=0.005)
    # From four, three are thought to train 8.63: 16 % below 10.3.
    assert model(B300_ENGINE, 11.5 / 4).throughput(Split(5, 3)) == pytest.approx(10.3 * 0.837, rel=0.005)


def test_one_rate_a_rank_reproduces_all_of_b300_within_a_tenth() -> None:
    # The rate in the middle: as far above at four ranks as below at three.
    rank = 2 / (3 / 10.3 + 4 / 11.5)
    made = model(B300_ENGINE, rank)
    for split, published in B300.items():
        assert made.throughput(split) == pytest.approx(published, rel=0.1)


def test_a_part_of_the_step_that_no_rank_shortens_reproduces_all_of_b300() -> None:
    rank = 1 / B300_A
    made = model(B300_ENGINE, rank, fixed_packs=PACKS * B300_C / B300_A)
    for split, published in B300.items():
        assert made.throughput(split) == pytest.approx(published, rel=1e-6)
    assert ranked(made)[0] == Split(4, 4)
