"""Groups of rank processes that change while a run goes on: the losses of a run left alone, and short pauses."""

from pathlib import Path
from typing import Any

import pytest

from tests.trainer import recorded
from tests.trainer.elastic import ElasticHub, Fault, Steering, signal
from tests.trainer.recorded import Hub, Join, make_run, schedule_of, wait_for

pytestmark = pytest.mark.torch
RELATIVE = 1e-6
MAX_STEPS = 8
PROMPT_S = 3.0
PAUSE_S = 5.0
"""Of a resize; measured on two busy cores: 0.04-0.26 s replicated, 0.5-1.6 s sharded."""
ADAMW = {"draft": {"train": {**recorded.TRAIN, "optimizer": "adamw"}}}


@pytest.fixture(scope="module")
def prepare(tiny_target, recorded_data, tmp_path_factory):
    """Makes a run directory."""

    def make(sharding: str = "replicate", **changes: Any) -> Path:
        root = tmp_path_factory.mktemp("runs") / "run"
        trainers = {"sharding": sharding, "group_timeout_s": 20}
        return make_run(root, tiny_target, recorded_data, run={"max_steps": MAX_STEPS}, trainers=trainers, **changes)

    return make


@pytest.fixture(scope="module")
def undisturbed(prepare):
    """What one rank that is left alone commits, by optimizer."""
    hubs = {}
    for name, changes in (("muon", {}), ("adamw", ADAMW)):
        run = prepare(**changes)
        hub = Hub(schedule_of(run))
        assert recorded.train(run, hub, [Join(1)])[0].state == "done"
        hubs[name] = hub
    return hubs


def assert_same(hub: Hub, reference: Hub) -> None:
    assert [commit.unit for commit in hub.commits] == list(range(hub.schedule.num_units))
    for kind in ("train", "validate"):
        for name in ("loss", "accept_len", "data_hash"):
            mine, want = ([metrics[name] for metrics in each.of(kind)] for each in (hub, reference))
            assert mine == (want if name == "data_hash" else pytest.approx(want, rel=RELATIVE)), name


@pytest.mark.parametrize(
    ("sizes", "sharding"), [((1, 2, 1), "replicate"), ((2, 3, 2), "replicate"), ((2, 3, 2), "fsdp")]
)
def test_a_group_that_grows_and_shrinks_trains_as_one_left_alone(prepare, undisturbed, sizes, sharding):
    changes = ADAMW if sharding == "fsdp" else {}
    run = prepare(sharding, **changes)
    small, large, _ = (list(range(size)) for size in sizes)
    hub = ElasticHub(schedule_of(run), withhold_from_unit=6)
    with Steering(run, hub, sizes[1]) as steering:
        steering.form(*small)
        wait_for(lambda: len(hub.commits) >= 2)
        assert [steering.ranks[i].status["pause_s"] for i in small] == [None] * len(small)
        grown = steering.resize(small, large, then_withhold=10)
        pauses = [steering.ranks[i].status["pause_s"] for i in small]
        wait_for(lambda: len(hub.commits) > grown)
        shrunk = steering.resize(large, small)
        pauses += [steering.ranks[i].status["pause_s"] for i in small]
        steering.wait_until(small, "done")
        left = steering.ranks[large[-1]].status
        assert (left["state"], left["generation"], left["error"]) == ("ready", 0, "")
    assert max(pauses) < PAUSE_S, pauses
    assert 2 <= grown <= 6
    assert grown < shrunk <= 10
    num_ranks = [commit.metrics["num_ranks"] for commit in hub.commits]
    assert num_ranks == grown * [sizes[0]] + (shrunk - grown) * [sizes[1]] + (len(num_ranks) - shrunk) * [sizes[2]]
    assert_same(hub, undisturbed["adamw" if changes else "muon"])


@pytest.mark.parametrize("sharding", ["replicate", "fsdp"])
def test_rank_0_may_leave_at_the_boundary_at_which_another_joins(prepare, undisturbed, sharding):
    changes = ADAMW if sharding == "fsdp" else {}
    run = prepare(sharding, **changes)
    hub = ElasticHub(schedule_of(run), withhold_from_unit=6)
    with Steering(run, hub, 3) as steering:
        steering.form(0, 1)
        wait_for(lambda: len(hub.commits) >= 2)
        moved = steering.resize([0, 1], [1, 2])
        steering.wait_until([1, 2], "done")
        assert steering.ranks[0].status["state"] == "ready"
    assert 2 <= moved <= 6
    assert_same(hub, undisturbed["adamw" if changes else "muon"])


def test_a_rank_killed_in_the_midst_of_a_step_is_noticed_and_the_others_do_that_step_again(prepare, undisturbed):
    run = prepare()
    hub = ElasticHub(schedule_of(run))
    with Steering(run, hub, 3, {2: Fault("exchange_gradients", 4)}) as steering:
        steering.form(0, 1, 2)
        wait_for(lambda: not steering.ranks[2].process.is_alive())
        assert steering.wait_until([0, 1], "broken") < PROMPT_S
        assert "another rank died" in steering.ranks[0].status["error"]
        answers, took_s = steering.halt(0, 1)
        assert took_s < PROMPT_S
        assert answers == [{"ended": True, "step": 3, "uncommitted": None}] * 2
        assert steering.heal([0, 1], answers) == [{"resumed_step": 3}] * 2
        steering.wait_until([0, 1], "done")
    assert_same(hub, undisturbed["muon"])


def test_a_rank_0_killed_before_its_commit_leaves_it_to_the_others(prepare, undisturbed):
    run = prepare()
    hub = ElasticHub(schedule_of(run), hold_commit_of_unit=6)
    with Steering(run, hub, 3) as steering:
        steering.form(0, 1, 2)
        wait_for(lambda: hub.num_held)
        assert [commit.unit for commit in hub.commits] == list(range(6))
        steering.ranks[0].signal(signal.SIGKILL)
        assert steering.wait_until([1, 2], "broken") < PROMPT_S
        answers, _ = steering.halt(1, 2)
        step = hub.schedule.num_steps_before(7)
        assert [(a["ended"], a["step"], a["uncommitted"].unit) for a in answers] == [(True, step, 6)] * 2
        assert steering.heal([1, 2], answers) == [{"resumed_step": step}] * 2
        steering.wait_until([1, 2], "done")
    assert_same(hub, undisturbed["muon"])


@pytest.mark.parametrize(("hung", "method"), [(2, "exchange_gradients"), (0, "advance")])
def test_ranks_beside_one_that_hangs_can_be_halted_and_go_on_without_it(prepare, undisturbed, hung, method):
    run = prepare()
    hub = ElasticHub(schedule_of(run))
    others = [i for i in range(3) if i != hung]
    with Steering(run, hub, 3, {hung: Fault(method, 4, signal.SIGSTOP)}) as steering:
        steering.form(0, 1, 2)
        steering.wait_for_stop(hung)
        # Where rank 0 hangs after the collectives, the others are one step ahead of the ledger, if they got so far.
        possible = (3, 4) if hung == 0 else (3,)
        wait_for(lambda: all(steering.ranks[i].status["step"] in possible for i in others))
        answers, took_s = steering.halt(*others)
        assert took_s < PROMPT_S
        steps = [answer["step"] for answer in answers]
        assert all(step in possible for step in steps)
        assert [answer["uncommitted"] is not None for answer in answers] == [step == 4 for step in steps]
        assert all(answer["ended"] for answer in answers)
        assert steering.halt(*others)[0] == answers
        steering.ranks[hung].signal(signal.SIGKILL)
        assert steering.heal(others, answers) == [{"resumed_step": max(steps)}] * 2
        steering.wait_until(others, "done")
    assert_same(hub, undisturbed["muon"])
