"""Rank processes over gloo: the same steps whatever their number, their layout, and what became of them in between."""

from pathlib import Path
from typing import Any

import pytest

from dspark_train.trainer.checkpoint_files import find_latest, problems, step_dir
from tests.trainer import recorded
from tests.trainer.recorded import Hub, Join, Outcome, make_run, schedule_of

pytestmark = pytest.mark.torch
RELATIVE = 1e-6
MAX_STEPS = 10


@pytest.fixture(scope="module")
def scenario(tiny_target, recorded_data, tmp_path_factory):
    """Runs a scenario; returns the hub and the ranks' outcomes."""

    def run(
        *joins: Join, sharding: str = "replicate", run_dir: Path | None = None, **changes: Any
    ) -> tuple[Hub, list[Outcome], Path]:
        stop = changes.pop("stop_at_step", None)
        changes = {
            "run": {"max_steps": MAX_STEPS},
            **changes,
            "trainers": {"sharding": sharding, "group_timeout_s": 30},
        }
        root = run_dir or tmp_path_factory.mktemp("runs") / "run"
        make_run(root, tiny_target, recorded_data, **changes)
        hub = Hub(schedule_of(root), stop_at_step=stop)
        return hub, recorded.train(root, hub, joins), root

    return run


@pytest.fixture(scope="module")
def undisturbed(scenario):
    """One rank that is left alone."""
    hub, outcomes, root = scenario(Join(1))
    assert [outcome.state for outcome in outcomes] == ["done"], outcomes
    return hub, root


def figures(hub: Hub, kind: str, name: str) -> dict[int, Any]:
    return {metrics["step"]: metrics[name] for metrics in hub.of(kind)}


def assert_same(hub: Hub, reference: Hub, steps: range) -> None:
    for kind in ("train", "validate"):
        for name in ("loss", "accept_len", "position_0_acc"):
            mine, want = figures(hub, kind, name), figures(reference, kind, name)
            assert mine == pytest.approx({step: want[step] for step in mine}, rel=RELATIVE)
    assert [m["step"] for m in hub.of("train")] == list(steps)
    hashes = figures(reference, "train", "data_hash")
    assert figures(hub, "train", "data_hash") == {step: hashes[step] for step in steps}


def test_a_run_left_alone_trains_every_step_once_and_tells_what_it_did(undisturbed):
    hub, root = undisturbed
    assert [m["step"] for m in hub.of("train")] == list(range(1, MAX_STEPS + 1))
    assert [m["step"] for m in hub.of("validate")] == [0, 3, 6, 9, 10]
    wanted = {"step", "epoch", "loss", "accept_len", "lr", "muon_lr", "tokens", "wait_s", "step_s", "num_ranks"}
    wanted |= {
        "generation",
        "data_hash",
        "grad_norm",
        "position_0_acc",
        "position_3_acc",
        "confidence_abs_error",
        "eal",
    }
    assert wanted <= hub.of("train")[0].keys()
    assert hub.checkpointed == [3, 6, 9, 10]
    assert [found.step for found in find_latest(root / "checkpoints")] == [10, 9, 6]
    assert not any(problems(found.path) for found in find_latest(root / "checkpoints"))


@pytest.mark.parametrize("world_size", [2, 3])
def test_losses_do_not_depend_on_the_number_of_ranks(scenario, undisturbed, world_size):
    hub, outcomes, _ = scenario(Join(world_size))
    assert {outcome.state for outcome in outcomes} == {"done"}, outcomes
    assert_same(hub, undisturbed[0], range(1, MAX_STEPS + 1))
    tokens = sum(metrics["tokens"] for metrics in hub.of("train")) + sum(m["tokens"] for m in hub.of("validate"))
    assert sum(outcome.figures["tokens"] for outcome in outcomes) == tokens
    assert all(0 <= outcome.figures["fetch_s"] <= outcome.figures["wait_s"] for outcome in outcomes)


def test_ranks_without_packs_change_nothing(scenario):
    data = {"step_packs": 2}
    one, _, _ = scenario(Join(1), data=data, run={"max_steps": 4})
    hub, outcomes, _ = scenario(Join(3), data=data, run={"max_steps": 4})
    assert {outcome.state for outcome in outcomes} == {"done"}, outcomes
    assert_same(hub, one, range(1, 5))


@pytest.mark.parametrize("world_size", [2, 3])
def test_a_sharded_draft_trains_as_a_replicated_one(scenario, undisturbed, world_size):
    # AdamW: Muon computes in bfloat16 and shows the order in which float32 gradients were added.
    train = {"draft": {"train": {**recorded.TRAIN, "optimizer": "adamw"}}, "run": {"max_steps": 6}}
    one, _, _ = scenario(Join(1), **train)
    hub, outcomes, _ = scenario(Join(world_size), sharding="fsdp", **train)
    assert {outcome.state for outcome in outcomes} == {"done"}, outcomes
    assert_same(hub, one, range(1, 7))


@pytest.mark.parametrize("sharding", ["replicate", "fsdp"])
def test_a_run_stopped_and_resumed_by_another_number_of_ranks_goes_on_as_if_left_alone(scenario, undisturbed, sharding):
    train = {} if sharding == "replicate" else {"draft": {"train": {**recorded.TRAIN, "optimizer": "adamw"}}}
    whole = undisturbed[0] if sharding == "replicate" else scenario(Join(1), **train)[0]
    first, outcomes, root = scenario(Join(2), sharding=sharding, stop_at_step=2, **train)
    assert {outcome.state for outcome in outcomes} == {"stopped"}, outcomes
    stopped_at = first.of("train")[-1]["step"]
    assert first.checkpointed[-1] == stopped_at < MAX_STEPS
    assert_same(first, whole, range(1, stopped_at + 1))
    second, outcomes, _ = scenario(Join(3, stopped_at), sharding=sharding, run_dir=root, **train)
    assert [outcome.joins for outcome in outcomes] == [[{"resumed_step": stopped_at}]] * 3, outcomes
    assert {outcome.state for outcome in outcomes} == {"done"}, outcomes
    assert_same(second, whole, range(stopped_at + 1, MAX_STEPS + 1))


def test_a_rank_that_joins_later_gets_weights_and_optimizer_from_the_one_that_was_there(scenario, undisturbed):
    hub, outcomes, _ = scenario(Join(1), Join(2, generation=2), stop_at_step=2)
    (stopped, joined), (late,) = (outcome.joins for outcome in outcomes)
    assert stopped == {"resumed_step": 0}
    assert joined == late
    assert 2 <= late["resumed_step"] < MAX_STEPS
    assert {outcome.state for outcome in outcomes} == {"done"}, outcomes
    assert_same(hub, undisturbed[0], range(1, MAX_STEPS + 1))


def test_a_damaged_checkpoint_is_refused_by_every_rank_and_the_one_before_is_taken(scenario, undisturbed):
    _, outcomes, root = scenario(
        Join(1), run={"max_steps": 6}, draft={"train": {**recorded.TRAIN, "scheduler_total_steps": MAX_STEPS}}
    )
    assert outcomes[0].state == "done"
    weights = next(step_dir(root / "checkpoints", 6).glob("*.distcp"))
    spoilt = bytearray(weights.read_bytes())
    spoilt[len(spoilt) // 2] ^= 1
    weights.write_bytes(spoilt)
    hub, outcomes, _ = scenario(Join(2, 6), Join(2, 3, generation=2), run_dir=root)
    for outcome in outcomes:
        refusal, accepted = outcome.joins
        assert "cannot be loaded" in refusal
        assert "sha256 differs" in refusal
        assert accepted == {"resumed_step": 3}
        assert outcome.state == "done", outcome
    assert_same(hub, undisturbed[0], range(4, MAX_STEPS + 1))


def test_a_loss_that_is_not_finite_ends_every_rank_and_names_step_and_packs(scenario):
    train = {**recorded.TRAIN, "optimizer": "adamw", "lr": 1e30, "scheduler_warmup_steps": 0}
    hub, outcomes, root = scenario(Join(2), draft={"train": train})
    assert {outcome.state for outcome in outcomes} == {"failed"}
    for outcome in outcomes:
        assert "step 2" in outcome.error
        assert "not finite" in outcome.error
        assert "samples [" in outcome.error
    assert [m["step"] for m in hub.of("train")] == [1]
    assert find_latest(root / "checkpoints") == []
