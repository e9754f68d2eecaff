"""The virtual clock: starts, pauses, deaths, and the counters that the balance sees."""

from __future__ import annotations

import numpy as np
import pytest

from dspark_train.balance.layout import Layout
from dspark_train.balance.seen import Split
from dspark_train.simulate.flow import Fluid
from dspark_train.simulate.scenario import Change, EngineKind, Failure, RankKind, Scenario
from dspark_train.simulate.weather import draw
from dspark_train.simulate.world import World

EIGHT = Layout(1, 1, tuple(8 - ranks for ranks in range(1, 8)), 60)
BASE = {
    "name": "x",
    "hours": 1,
    "engine": EngineKind(samples_per_s=10, start_s=240),
    "rank": RankKind(samples_per_s=10 / 3, start_s=240, pause_s=40),
}


BEST = Split(2, 6)


def world(start: Split = BEST, **changes: object) -> World:
    scenario = Scenario.model_validate({**BASE, **changes})
    return World(scenario, EIGHT, draw(scenario, 7, 7, 0), Fluid(scenario.buffer_samples), start)


def play(made: World, until_s: float) -> list[float]:
    return [made.tick() / made.scenario.tick_s for _ in range(round((until_s - made.at_s) / made.scenario.tick_s))]


def test_engines_and_ranks_give_the_least_of_both() -> None:
    assert play(world(Split(2, 6)), 60) == pytest.approx([20] * 6)
    assert play(world(Split(1, 7)), 60) == pytest.approx([10] * 6)
    assert play(world(Split(6, 2)), 60)[-1] == pytest.approx(20 / 3)


def test_a_rank_more_trains_after_its_start_and_a_pause() -> None:
    made = world(Split(2, 5))
    made.order(Split(2, 6))
    rates = play(made, 400)
    assert rates[:24] == pytest.approx([50 / 3] * 24)
    assert rates[24:28] == [0] * 4
    # Engines had filled the store meanwhile.
    assert rates[28:] == pytest.approx([20] * 12)


def test_a_paired_move_gives_before_it_takes() -> None:
    made = world(Split(2, 6), changes=[{"at_h": 0, "engines": 0.3}], buffer_samples=1)
    made.order(Split(4, 4))
    rates = play(made, 400)
    assert rates[:4] == [0] * 4
    # Ranks free their nodes after 40 s, then engines start for 240 s.
    assert rates[5:28] == pytest.approx([6] * 23)
    assert rates[29:] == pytest.approx([12] * 11)


def test_a_dead_engine_comes_back_after_a_start() -> None:
    failure = Failure(at_h=100 / 3600, pool="inference", number=2)
    made = world(Split(2, 6), failures=[failure.model_dump()], buffer_samples=1)
    rates = play(made, 400)
    assert rates[9] == pytest.approx(20)
    assert rates[10:34] == pytest.approx([10] * 24, rel=0.01)
    assert rates[35:] == pytest.approx([20] * 5)


def test_a_dead_rank_pauses_the_group_twice() -> None:
    failure = Failure(at_h=100 / 3600, pool="trainers")
    made = world(Split(2, 6), failures=[failure.model_dump()])
    rates = play(made, 400)
    assert rates[10:14] == [0] * 4
    assert rates[14:34] == pytest.approx([50 / 3] * 20)
    assert rates[34:38] == [0] * 4
    assert made.num_pending == 0


def test_counters_tell_service_rates_whoever_is_held_up() -> None:
    made = world(Split(6, 2))
    play(made, 300)
    seen = made.observation()
    assert [engine.tokens / engine.busy_s for engine in seen.engines] == pytest.approx([10] * 6)
    assert sum(rank.tokens / rank.busy_s for rank in seen.ranks) == pytest.approx(20 / 3)
    assert seen.ranks[0].wait_s == pytest.approx(0, abs=1e-6)


def test_ranks_that_wait_for_the_link_wait_for_what_is_there() -> None:
    made = world(Split(2, 6), link_samples_per_s=5)
    assert play(made, 100)[-1] == pytest.approx(5)
    rank = made.observation().ranks[0]
    assert rank.fetch_s == pytest.approx(rank.wait_s)
    assert rank.wait_s == pytest.approx(75)


def test_changes_hold_until_the_next_and_drifts_are_lines() -> None:
    changes = [Change(at_h=0.25, engines=0.5), Change(at_h=0.5, over_h=0.5, engines=1.0)]
    weather = draw(Scenario.model_validate({**BASE, "changes": changes}), 7, 7, 0)
    assert weather.engines[[0, 89, 90, 179]].tolist() == [1, 1, 0.5, 0.5]
    assert weather.engines[270] == pytest.approx(0.75, abs=0.01)
    assert weather.engines[-1] == pytest.approx(1, abs=0.01)


def test_noise_has_the_mean_and_the_spread_that_it_says() -> None:
    weather = draw(Scenario.model_validate({**BASE, "noise_frac": 0.5, "hours": 48}), 7, 7, 0)
    assert weather.engine_noise is not None
    assert weather.group_noise is not None
    assert weather.engine_noise.mean() == pytest.approx(1, abs=0.01)
    assert weather.engine_noise.std() == pytest.approx(0.5, rel=0.03)
    # Of a group, that of the mean of its ranks.
    assert np.std(weather.group_noise[:, 3]) == pytest.approx(0.25, rel=0.04)
