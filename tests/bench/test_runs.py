"""What is made of whole runs: efficiency against the slower side, the peer's rate without its epochs' ends."""

import pytest

from dspark_train.bench import peer, pipeline
from dspark_train.bench.trainer_alone import trained_tokens_per_s
from dspark_train.errors import StartError

pytestmark = pytest.mark.torch


def test_efficiency_is_taken_against_the_slower_side_of_the_same_round():
    rounds = [
        {"engine": 100.0, "trainer": 200.0, "run": 95.0},
        {"engine": 300.0, "trainer": 100.0, "run": 90.0},
        {"engine": 100.0, "trainer": 100.0, "run": 100.0},
    ]
    made = pipeline.figures(rounds)
    assert (made["efficiency"], made["efficiency_spread"]) == (0.95, [0.9, 1.0])
    assert (made["engine_alone_tokens_per_s"], made["run_tokens_per_s"]) == (100.0, 95.0)


def test_a_trainer_alone_is_timed_without_its_waits():
    steps = [{"tokens": 100, "step_s": 2.0, "wait_s": 1.0}, {"tokens": 300, "step_s": 1.5, "wait_s": 0.5}]
    assert trained_tokens_per_s(steps) == 200.0
    with pytest.raises(StartError, match="too few steps"):
        trained_tokens_per_s([])


def test_time_between_the_peers_epochs_is_not_counted_against_it():
    at_s = [0.0, 1.0, 2.0, 3.0, 4.0, 50.0, 51.0]
    steps = [{"at_s": at, "epoch": int(at > 10), "loss": at} for at in at_s]
    assert peer.their_tokens_per_s(steps, 10.0) == 10.0
    assert peer.last_loss(steps) == pytest.approx((2.0 + 3.0 + 4.0 + 50.0 + 51.0) / 5)
    with pytest.raises(StartError, match="too few steps"):
        peer.their_tokens_per_s(steps[:3], 10.0)


def test_the_ratio_to_the_peer_comes_by_pairs_and_its_patches_are_shown():
    pairs = [
        {"ours": {"tokens_per_s": 200.0, "loss": 1.0}, "peer": {"tokens_per_s": 100.0, "loss": 1.2}},
        {"ours": {"tokens_per_s": 90.0, "loss": 1.0}, "peer": {"tokens_per_s": 30.0, "loss": 1.0}},
    ]
    made = peer.figures(pairs, ["a patch"])
    assert (made["ratio"], made["ratio_spread"], made["patches"]) == (2.5, [2.0, 3.0], ["a patch"])
    assert (made["ours_tokens_per_s"], made["peer_loss"]) == (145.0, pytest.approx(1.1))
