"""Rates from counters: what counts as work, and what does not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dspark_train.balance.estimator import NOTHING, Estimator, observed
from dspark_train.balance.rule import Rule
from dspark_train.balance.seen import EngineSeen, Observation, RankSeen, Split
from dspark_train.topology.schema import Balance

from .looks import Run

RULE = Rule.of(Balance())
PACKS = 60


def watch(run: Run, num: int = 6, known: Estimator = NOTHING) -> Estimator:
    for _ in range(num):
        known = observed(known, run.look(), RULE, PACKS)
    return known


def rate(known: Estimator, engine: str) -> float:
    found = known.engines[engine].rate
    assert found is not None
    return found.value


@pytest.mark.parametrize("split", [Split(6, 2), Split(2, 6), Split(1, 7)])
def test_whoever_is_held_up_has_the_same_rate_as_if_it_was_not(split: Split) -> None:
    known = watch(Run(split))
    assert [rate(known, name) for name in known.engines] == pytest.approx([10.0] * split.num_engines)
    assert known.rank is not None
    assert known.rank.value == pytest.approx(10 / 3)


def test_a_slow_engine_is_told_from_the_others() -> None:
    known = watch(Run(Split(3, 5), engine_factors={"engine-2": 0.4}))
    assert [rate(known, f"engine-{number}") for number in (1, 2, 3)] == pytest.approx([10, 4, 10])


def test_without_work_nothing_is_learnt_and_the_age_grows() -> None:
    run = Run(Split(2, 6))
    known = watch(run)
    before = known.engines["engine-1"].rate
    seen = run.look()
    for later_s in (300, 600):
        idle = replace(seen, at_s=seen.at_s + later_s)
        known = observed(known, idle, RULE, PACKS)
    after = known.engines["engine-1"].rate
    assert before is not None
    assert after is not None
    assert after.value == pytest.approx(before.value)
    assert after.error(seen.at_s + 600) > after.error(seen.at_s)


def test_the_warm_up_is_left_out() -> None:
    run = Run(Split(2, 6), engine_factors={"engine-2": 0.1})
    known = observed(NOTHING, run.look(), RULE, PACKS)
    run.engine_factors = {}
    assert rate(watch(run, known=known), "engine-2") == pytest.approx(10)


@pytest.mark.parametrize("place", ["engine", "ranks"])
def test_an_excluded_window_is_left_out(place: str) -> None:
    run = Run(Split(2, 6))
    known = watch(run)
    run.engine, run.rank = 1.0, 0.1
    seen = run.look()
    if place == "engine":
        seen = replace(seen, engines=tuple(replace(engine, is_excluded=True) for engine in seen.engines))
    seen = replace(seen, is_excluded=True)
    known = observed(known, seen, RULE, PACKS)
    assert known.rank is not None
    assert known.rank.value == pytest.approx(10 / 3)
    if place == "engine":
        assert rate(known, "engine-1") == pytest.approx(10)


def test_a_process_that_began_anew_keeps_the_rate_and_counts_from_zero() -> None:
    run = Run(Split(2, 6))
    known = watch(run)
    run.busy["engine-1"] = (0.0, 0.0)
    known = watch(run, 1, known)
    assert rate(known, "engine-1") == pytest.approx(10)
    assert known.engines["engine-1"].since_s == run.at_s


def test_a_rank_that_waits_for_others_inside_the_step_does_not_make_the_group_look_slow() -> None:
    run = Run(Split(2, 6))
    known, extra_s = NOTHING, 0.0
    for _ in range(6):
        seen = run.look()
        extra_s += 8.0
        ranks = tuple(replace(r, busy_s=r.busy_s + extra_s) if r.name != "rank-3" else r for r in seen.ranks)
        known = observed(known, replace(seen, ranks=ranks), RULE, PACKS)
    assert known.rank is not None
    assert known.rank.value == pytest.approx(10 / 3)


def test_a_rank_with_a_smaller_share_that_does_not_count_its_wait_for_others_says_nothing() -> None:
    # 16 packs over 6 ranks: shares of 3, 3, 3, 3, 2, 2. A pack takes 1 s and is 30 tokens; an exchange takes 0.5 s.
    known = NOTHING
    for place in range(1, 7):
        num_steps = 10 * place
        ranks = tuple(
            RankSeen(f"rank-{n}", num_steps * packs * 30.0, num_steps * (packs + 0.5), num_steps * (3.0 - packs))
            for n, packs in enumerate((3, 3, 3, 3, 2, 2))
        )
        seen = Observation(35.0 * place, Split(1, 6), (EngineSeen("engine-1", 1e4 * place, 35.0 * place),), ranks)
        known = observed(known, seen, RULE, 16)
    assert known.rank is not None
    assert known.rank.value == pytest.approx(3 * 30 / 3.5)
    assert known.link is None


def test_a_change_of_the_group_keeps_the_rate() -> None:
    run = Run(Split(2, 6))
    known = watch(run)
    run.split = Split(4, 4)
    known = watch(run, 2, known)
    assert known.rank is not None
    assert known.rank.value == pytest.approx(10 / 3)


def link_look(at_s: float, fetch_frac: float, empty_frac: float) -> Observation:
    """Four ranks that together train 8/s while they train; what is left of the time they wait."""
    busy_s = at_s * (1 - fetch_frac - empty_frac)
    wait_s, fetch_s = at_s * (fetch_frac + empty_frac), at_s * fetch_frac
    ranks = tuple(RankSeen(f"rank-{n}", 2 * busy_s, busy_s, wait_s, fetch_s) for n in range(4))
    engines = (EngineSeen("engine-1", 8 * busy_s, busy_s),)
    return Observation(at_s, Split(1, 4), engines, ranks)


def test_an_empty_store_says_nothing_of_the_link() -> None:
    known = NOTHING
    for place in range(1, 6):
        known = observed(known, link_look(30.0 * place, fetch_frac=0.0, empty_frac=0.5), RULE, PACKS)
    assert known.link is None


def test_a_wait_for_what_is_in_the_store_says_what_the_link_carries() -> None:
    known = NOTHING
    for place in range(1, 6):
        known = observed(known, link_look(30.0 * place, fetch_frac=0.4, empty_frac=0.1), RULE, PACKS)
    assert known.link is not None
    # Half of the time they train, 8/s; a tenth nothing was there to be carried: 4 samples in 0.9 s.
    assert known.link.value == pytest.approx(8 * 0.5 / 0.9)


def test_the_link_of_one_rank_holds_all_others_up() -> None:
    known = NOTHING
    for place in range(1, 6):
        seen = link_look(30.0 * place, fetch_frac=0.5, empty_frac=0.0)
        ranks = tuple(replace(rank, fetch_s=0.0) if rank.name != "rank-2" else rank for rank in seen.ranks)
        known = observed(known, replace(seen, ranks=ranks), RULE, PACKS)
    assert known.link is not None
    assert known.link.value == pytest.approx(8 * 0.5)


def test_more_than_the_link_was_thought_to_carry_corrects_it() -> None:
    known = NOTHING
    for place in range(1, 6):
        known = observed(known, link_look(30.0 * place, fetch_frac=0.4, empty_frac=0.1), RULE, PACKS)
    known = known._replace(ranks={})
    for place in range(6, 9):
        known = observed(known, link_look(30.0 * place, fetch_frac=0.0, empty_frac=0.0), RULE, PACKS)
    assert known.link is None
