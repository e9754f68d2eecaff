"""The gates, one by one: each hold names its reason."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dspark_train.balance.decide import decide
from dspark_train.balance.decision import Decision, State
from dspark_train.balance.layout import Layout
from dspark_train.balance.reasons import Reason
from dspark_train.balance.seen import Costs, Split, more_cautious

from .looks import Run, settings

BAD, GOOD = Split(6, 2), Split(2, 6)


def test_a_bad_start_is_left_in_one_paired_move() -> None:
    run = Run(BAD)
    decision = run.decide(settings(), 10)
    assert (decision.reason, decision.to, decision.acts) == (Reason.GAIN, GOOD, True)
    assert decision.gives_first == "inference"
    # X(6, 2) = 6.67 and X(2, 6) = 20.
    assert decision.gain_frac == pytest.approx(2.0)
    # The first look begins the counters, the second falls into the warm-up; then it takes three windows.
    assert decision.at_s == 30 * (2 + 3)


def test_the_best_split_is_held() -> None:
    decision = Run(GOOD).decide(settings(), 40)
    assert (decision.reason, decision.to, decision.acts) == (Reason.BEST, GOOD, False)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"inference_mode": "off", "trainers_mode": "off"}, Reason.OFF),
        ({"pinned": ("inference", "trainers")}, Reason.PINNED),
        ({"pinned": ("inference",), "trainers_mode": "off"}, Reason.OFF),
        ({"is_running": False}, Reason.NOT_RUNNING),
        ({"num_pending": 1}, Reason.PENDING),
        ({"num_silent": 1}, Reason.SILENT),
        ({"engines": ()}, Reason.SILENT),
        ({"remaining_s": 30.0}, Reason.COST),
        ({"refused": tuple(Split(n, 8 - n) for n in range(1, 6))}, Reason.ILLEGAL),
        ({"pinned": ("trainers",)}, Reason.BEST),
    ],
)
def test_what_holds_a_move_up_is_named(changes, reason) -> None:  # type: ignore[no-untyped-def]
    run, rule = Run(BAD), settings()
    run.decide(rule, 4)
    decision = run.decide(rule, 6, **changes)
    assert (decision.reason, decision.to, decision.acts) == (reason, BAD, False)


def test_pools_without_another_size_are_fixed() -> None:
    only = settings(Layout(6, 2, (6,), 60))
    assert Run(BAD).decide(only, 6).reason is Reason.FIXED


def test_before_rates_are_known_nothing_moves() -> None:
    assert Run(BAD).decide(settings(), 2).reason is Reason.RATES_UNKNOWN


def test_a_gain_must_show_in_windows_in_a_row() -> None:
    run, rule = Run(BAD), settings(num_windows=4)
    reasons = []
    while not reasons or not reasons[-1].is_move:
        reasons.append(run.decide(rule).reason)
    assert reasons == [Reason.RATES_UNKNOWN] * 2 + [Reason.FEW_WINDOWS] * 3 + [Reason.GAIN]


def test_between_windows_nothing_is_learnt() -> None:
    run, rule = Run(BAD), settings()
    run.decide(rule, 3)
    before = run.state
    assert run.decide(rule, 1, at_s=run.at_s + 40).reason is not Reason.BETWEEN_WINDOWS
    run.state = before
    after, decision = decide(rule, before, run.look(5.0, at_s=run.at_s - 20))
    assert decision.reason is Reason.BETWEEN_WINDOWS
    assert after == before


def test_after_a_move_there_is_rest_from_when_it_has_settled() -> None:
    run, rule = Run(BAD), settings()
    moved = run.decide(rule, 10)
    assert run.decide(rule, 5, split=moved.to, num_pending=4).reason is Reason.PENDING
    run.split = moved.to
    # New rates at once: a move back would be a gain, and has to wait.
    run.engine, run.rank = 2.0, 10.0
    run.decide(rule, 1)
    settled_s = run.at_s
    while not (decision := run.decide(rule)).reason.is_move:
        assert run.at_s < settled_s + 2000
        last = decision
    assert last.reason is Reason.COOLING_DOWN
    assert last.not_before_s == settled_s + rule.rule.cooldown_s
    assert decision.at_s >= settled_s + rule.rule.cooldown_s


def test_a_gain_that_the_errors_may_explain_is_uncertain() -> None:
    # 3 engines of 5.2/s and 5 ranks: 15.6; 4 and 4 would give 4 x 3.33 x 1.3 = 17.3, were ranks as fast as they look.
    run = Run(Split(3, 5), engine=5.2, rank=13 / 3)
    decision = run.decide(settings(confidence_z=5.0, min_gain_frac=0.09), 6)
    assert decision.gain_frac == pytest.approx(4 * 13 / 3 / 15.6 - 1)
    assert decision.reason is Reason.UNCERTAIN


def test_a_move_that_does_not_repay_its_cost_is_not_made() -> None:
    # 5 ranks of 3.33 give 16.7, six 20: 3.33/s more. A pause of 100 s costs 1667, twice that 3333: 1000 s must be left.
    for remaining_s, reason in ((990.0, Reason.COST), (1400.0, Reason.GAIN)):
        run = Run(Split(3, 5))
        costs = Costs(engine_start_s=0.0, rank_start_s=0.0, pause_s=100.0)
        decision = run.decide(settings(), 12, remaining_s=remaining_s, costs=costs)
        assert decision.reason is reason


def test_a_pinned_pool_stays_and_the_other_moves_within_what_is_left() -> None:
    apart = settings(Layout(1, 1, (8,) * 8, 60))
    run = Run(Split(1, 6))
    decision = run.decide(apart, 10, pinned=("trainers",))
    assert (decision.to, decision.acts) == (Split(2, 6), True)


def test_advice_is_given_and_not_taken_and_not_repeated_at_once() -> None:
    run, rule = Run(BAD), settings()
    modes = {"inference_mode": "advise", "trainers_mode": "advise"}
    decision = run.decide(rule, 10, **modes)
    assert (decision.reason, decision.to, decision.acts) == (Reason.GAIN, GOOD, False)
    assert run.decide(rule, 5, **modes).reason is Reason.COOLING_DOWN
    assert run.decide(rule, 10, **modes).reason is Reason.GAIN


def test_one_pool_in_auto_acts_within_its_own_and_the_pair_is_advised() -> None:
    run, rule = Run(BAD), settings()
    decision = run.decide(rule, 10, trainers_mode="advise")
    assert (decision.reason, decision.to, decision.acts) == (Reason.GAIN, GOOD, False)


def test_the_more_cautious_of_two_modes_holds() -> None:
    assert [more_cautious("auto", mode) for mode in ("auto", "advise", "off")] == ["auto", "advise", "off"]
    assert more_cautious("off", "auto") == "off"


def test_a_move_is_not_taken_back_while_rates_are_what_they_were() -> None:
    rule = settings(cooldown_s=0)
    run = Run(BAD)
    run.split = run.decide(rule, 10).to
    # A fifth slower by what is seen: the errors of the few slices that the move was made on may explain that.
    run.engine = 9.0
    assert run.state.made is not None
    run.state = replace(run.state, made=replace(run.state.made, error=0.3))
    run.engine = 7.0
    reasons = {run.decide(rule).reason for _ in range(12)}
    assert Reason.UNCHANGED in reasons
    assert not any(reason.is_move for reason in reasons)


def test_engines_that_no_rank_waits_for_are_released_with_a_reserve() -> None:
    apart = settings(Layout(1, 1, (8,) * 2, 60), release_frac=0.5, release_windows=4)
    run = Run(Split(6, 2))
    decision = run.decide(apart, 20)
    # Two ranks train 6.67/s; half as much again takes one engine of 10/s, and a little for its error a second one.
    assert (decision.reason, decision.to, decision.acts) == (Reason.RELEASE, Split(2, 2), True)
    assert Run(Split(6, 2)).decide(settings(Layout(1, 1, (8,) * 2, 60)), 20).reason is Reason.BEST


def test_engines_come_back_when_they_are_needed() -> None:
    apart = settings(Layout(1, 1, (8,) * 2, 60), release_frac=0.5, cooldown_s=60)
    run = Run(Split(6, 2))
    run.split = run.decide(apart, 20).to
    run.engine = 2.0
    decision = run.decide(apart, 20)
    # 6.67/s from engines of 2/s: four.
    assert (decision.reason, decision.to) == (Reason.GAIN, Split(4, 2))


def test_state_and_decision_go_through_json_unchanged() -> None:
    run, rule = Run(BAD), settings()
    decision = run.decide(rule, 10)
    assert State.from_json(run.state.to_json()) == run.state
    assert Decision.from_json(decision.to_json()) == decision
    assert decision.text() == (
        "move 6 engines + 2 ranks -> 2 engines + 6 ranks: gain "
        f"(2 engines + 6 ranks would give +200.0%, at least {decision.gain_low_frac:+.1%}, for 133 tokens)"
    )


def test_the_same_call_gives_the_same_and_changes_nothing() -> None:
    run, rule = Run(BAD), settings()
    run.decide(rule, 3)
    seen, before = run.look(), run.state.to_json()
    assert decide(rule, run.state, seen) == decide(rule, run.state, seen)
    assert run.state.to_json() == before
