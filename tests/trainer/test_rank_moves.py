"""One rank in this process: how it moves from group to group, is halted, warmed up, and begins anew."""

import threading
import time

import pytest

from dspark_train.errors import StartError
from tests.trainer.recorded import TRAIN, make_run, wait_for
from tests.trainer.seat import Seat, elastic_seat

pytestmark = pytest.mark.torch
QUICK_S = 10.0


@pytest.fixture
def run_dir(tmp_path, tiny_target, recorded_data):
    return make_run(tmp_path / "run", tiny_target, recorded_data)


def test_a_rank_moves_to_the_group_it_expects_by_itself_whenever_it_is_told(run_dir):
    seat = elastic_seat(run_dir, withhold_from_unit=3)
    seat.rank.join(seat.spec(1, seat.hub.call("set_group", ["rank-0"], 1)))
    wait_for(lambda: seat.status()["unit"] == 3)
    stale, spec = seat.spec(2, 9), seat.spec(3, 3)
    seat.rank.expect(stale)
    seat.rank.expect(spec)
    assert seat.status()["generation"] == 1
    seat.hub.call("announce_group", ["rank-0"], 3, 5)
    wait_for(lambda: seat.status()["unit"] == 5)
    assert seat.status()["generation"] == 3
    assert seat.status()["pause_s"] < QUICK_S
    assert seat.hub.call("announce_group", ["rank-0"], 4, None) == 5
    wait_for(lambda: seat.status()["state"] == "ready")
    assert seat.status()["generation"] == 0
    seat.rank.expect(seat.spec(4, 5))
    wait_for(lambda: seat.status()["state"] == "done")
    assert [commit.generation for commit in seat.hub.commits] == 3 * [1] + 2 * [3] + 4 * [4]
    seat.rank.stop(QUICK_S)


def test_a_rank_whose_expected_group_does_not_form_keeps_its_state_and_says_so(tmp_path, tiny_target, recorded_data):
    root = make_run(tmp_path / "run", tiny_target, recorded_data, trainers={"group_timeout_s": 1})
    seat = elastic_seat(root, withhold_from_unit=3)
    seat.rank.join(seat.spec(1, seat.hub.call("set_group", ["rank-0"], 1)))
    wait_for(lambda: seat.status()["unit"] == 3)
    seat.rank.expect(seat.spec(2, 3, world_size=2))
    seat.hub.call("announce_group", ["rank-0", "rank-1"], 2, None)
    wait_for(lambda: seat.status()["state"] == "broken")
    assert "could not join its group" in seat.status()["error"]
    assert seat.rank.halt(QUICK_S) == {"ended": True, "step": 2, "uncommitted": None}
    assert (seat.status()["state"], seat.status()["error"]) == ("ready", "")
    seat.rank.join(seat.spec(3, seat.hub.call("set_group", ["rank-0"], 3)))
    wait_for(lambda: seat.status()["state"] == "done")
    seat.rank.stop(QUICK_S)


def test_a_rank_can_be_halted_without_a_group_and_while_one_forms_and_twice(run_dir):
    seat = elastic_seat(run_dir)
    nothing = {"ended": True, "step": None, "uncommitted": None}
    assert seat.rank.halt(QUICK_S) == nothing
    errors: list[str] = []

    def join() -> None:
        with pytest.raises(StartError) as raised:
            seat.rank.join(seat.spec(1, 0, world_size=2, rank=1))
        errors.append(str(raised.value))

    joining = threading.Thread(target=join)
    joining.start()
    wait_for(lambda: seat.status()["generation"] == 1)
    began_s = time.monotonic()
    assert seat.rank.halt(QUICK_S) == seat.rank.halt(QUICK_S) == nothing
    assert time.monotonic() - began_s < QUICK_S / 5
    joining.join(QUICK_S)
    assert "could not join its group" in errors[0]
    assert seat.status()["state"] == "ready"
    seat.rank.stop(QUICK_S)


def test_a_rank_0_whose_commit_is_not_answered_is_halted_and_gives_it_up(run_dir):
    seat = elastic_seat(run_dir, hold_commit_of_unit=3)
    seat.rank.join(seat.spec(1, seat.hub.call("set_group", ["rank-0"], 1)))
    wait_for(lambda: seat.hub.num_held)
    answer = seat.rank.halt(QUICK_S)
    assert (answer["ended"], answer["step"], answer["uncommitted"].unit) == (True, 3, 3)
    assert seat.rank.halt(QUICK_S) == answer
    seat.hub.hold_commit_of_unit = None
    seat.rank.stop(QUICK_S)


def test_warming_up_changes_no_weight_no_gradient_no_random_draw_and_no_loss(run_dir):
    import torch

    reference, seat = Seat(run_dir), Seat(run_dir)
    seat.start()
    drawn = torch.get_rng_state()
    before = [weight.clone() for weight in seat.rank._parts.draft.model.parameters()]
    seat.rank.warm()
    seat.rank.warm()
    model = seat.rank._parts.state.model
    assert all(torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))
    assert all(weight.grad is None for weight in model.parameters())
    assert torch.equal(drawn, torch.get_rng_state())
    assert seat.status()["state"] == "ready"
    for each in (seat, reference):
        if each is reference:
            each.start()
        each.join()
        wait_for(lambda each=each: each.status()["state"] == "done")
        each.rank.stop(QUICK_S)
    assert [c.metrics["loss"] for c in seat.hub.commits] == [c.metrics["loss"] for c in reference.hub.commits]


def test_beginning_anew_gives_the_losses_of_the_first_time(run_dir):
    seat = Seat(run_dir)
    seat.start()
    seat.join()
    wait_for(lambda: seat.status()["state"] == "done")
    first = {commit.unit: commit.metrics["loss"] for commit in seat.hub.commits}
    seat.hub.commits.clear()
    assert seat.join(generation=2, resume_step=0) == {"resumed_step": 0}
    wait_for(lambda: seat.status()["state"] == "done")
    again = {commit.unit: commit.metrics["loss"] for commit in seat.hub.commits}
    del first[0]  # the round before the first step counts as done
    assert again == first
    seat.rank.stop(QUICK_S)


def test_a_rank_without_a_state_does_not_begin_in_the_midst_of_a_run(run_dir):
    from dspark_train.errors import CheckpointError

    seat = elastic_seat(run_dir)
    with pytest.raises(CheckpointError, match="begins at unit 3, after 2 steps, and its rank 0 has 0 steps in memory"):
        seat.rank.join(seat.spec(1, 3))
    seat.rank.stop(QUICK_S)


def test_a_sharded_state_is_the_same_tensors_in_the_next_group(tmp_path, tiny_target, recorded_data, monkeypatch):
    import torch

    from dspark_train.trainer import carried, course

    pairs = []

    def compare(state, given):
        carried.take_over(state, given)
        pairs.append((given, carried.gather(state, stays_first=True)))

    monkeypatch.setattr(course, "take_over", compare)
    draft = {"train": {**TRAIN, "optimizer": "adamw"}}
    root = make_run(tmp_path / "run", tiny_target, recorded_data, trainers={"sharding": "fsdp"}, draft=draft)
    seat = elastic_seat(root, withhold_from_unit=3)
    seat.rank.join(seat.spec(1, seat.hub.call("set_group", ["rank-0"], 1)))
    wait_for(lambda: seat.status()["unit"] == 3)
    seat.rank.expect(seat.spec(2, 3))
    seat.hub.call("announce_group", ["rank-0"], 2, 4)
    wait_for(lambda: seat.status()["generation"] == 2 and seat.status()["state"] == "training")
    (first, _), (old, new) = pairs
    assert first is None
    assert old.step == new.step == 2
    assert old.weights.keys() == new.weights.keys()
    assert all(torch.equal(old.weights[name], new.weights[name]) for name in old.weights)
    assert old.optimizer["state"].keys() == new.optimizer["state"].keys()
    for name, figures in old.optimizer["state"].items():
        assert all(torch.equal(figures[key], new.optimizer["state"][name][key]) for key in figures), name
    assert seat.rank.halt(QUICK_S)["step"] is None
    seat.rank.stop(QUICK_S)
