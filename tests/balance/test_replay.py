"""A journal of observations replays to the same decisions."""

from __future__ import annotations

import json

import pytest

from dspark_train.balance.decision import State
from dspark_train.balance.replay import BEGAN, SEEN, began, recorded, replay
from dspark_train.balance.seen import Split
from dspark_train.simulate.flow import Fluid
from dspark_train.simulate.laws import Balance
from dspark_train.simulate.run import follow
from dspark_train.simulate.scenario import Change, EngineKind, RankKind, Scenario
from dspark_train.simulate.weather import draw
from dspark_train.simulate.world import World

from .looks import EIGHT_NODES, settings

SCENARIO = Scenario(
    name="an hour",
    hours=1.5,
    engine=EngineKind(samples_per_s=10, start_s=60),
    rank=RankKind(samples_per_s=10 / 3, start_s=60, pause_s=10),
    noise_frac=0.1,
    changes=(Change(at_h=0.6, engines=0.3),),
    hours_between_failures=20,
)


def test_a_journal_replays_to_the_same_decisions() -> None:
    rule = settings()
    lines = [json.dumps({"kind": BEGAN, **began(rule, State())}), json.dumps({"kind": "engine.ready", "who": "x"})]
    law = Balance(rule, lambda seen, made: lines.append(json.dumps({"kind": SEEN, **recorded(seen, made)})))
    weather = draw(SCENARIO, 7, 7, seed=1)
    world = World(SCENARIO, EIGHT_NODES, weather, Fluid(1200), Split(6, 2))
    course = follow(world, law)
    again = list(replay(json.loads(line) for line in lines))
    assert len(again) == len(lines) - 2
    assert [made for made, _ in again] == [before for _, before in again]
    assert sum(made.acts for made, _ in again) == len(course.moves) >= 2


def test_a_journal_without_its_beginning_is_refused() -> None:
    with pytest.raises(ValueError, match="beginning is missing"):
        list(replay([{"kind": SEEN}]))
