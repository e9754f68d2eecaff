"""A trainer alone never waits for samples that will not come: all are there before it begins, or it is told."""

import asyncio

import numpy as np
import pytest

from dspark_train.bench import pipeline
from dspark_train.bench.trainer_alone import STILL_S, Progress, put_all
from dspark_train.controller.ledger_service import LedgerService
from dspark_train.errors import StartError
from dspark_train.schedule.layout import SampleLayout
from dspark_train.schedule.messages import Member, Ready
from dspark_train.topology.resolve import GIB, TargetFacts, resolve
from dspark_train.topology.schema import Topology

BYTES_PER_TOKEN, LENGTHS = 2 * 8 * 4, np.full(400, 30)


def resolved(num_steps, segment_gib=0.001):
    topology = Topology.model_validate(
        {
            "name": "t",
            "target": {"model": "m", "layers": [1], "shape": {"num_layers": 4, "hidden_size": 8}},
            "data": {"path": "data", "seq_len": 64, "step_packs": 4, "validation_frac": 0},
            "nodes": {"shared": {"count": 1, "gpus": 0}},
            "engines": {"count": {"start": 1, "max": 1}},
            "trainers": {"ranks": {"start": 1, "max": 1}},
            "store": {"segment_gib": segment_gib},
            "run": {"seed": 5, "max_steps": num_steps},
        }
    )
    return resolve(topology, TargetFacts())


def filled(run_dir, num_steps, segment_gib, put=lambda lease: None):
    """What the ledger says once everything was put that it leases."""

    def put_one(lease):
        put(lease)
        return Ready(lease.key, SampleLayout(lease.num_tokens, BYTES_PER_TOKEN).total_bytes)

    with asyncio.Runner() as runner:
        made = LedgerService(str(run_dir), 0, resolved=resolved(num_steps, segment_gib), lengths_tokens=LENGTHS)
        runner.run(made.set_group([Member("rank-0", "here", round(segment_gib * GIB))], 1))
        runner.run(made.run())
        try:
            put_all(made, runner.run, put_one)
            return runner.run(made.view())
        finally:
            runner.run(made.stop())


@pytest.mark.parametrize("num_steps", [24, 100, 129, 240, 1000])
def test_all_samples_of_a_trainer_alone_are_there_however_long_the_run_is(num_steps, tmp_path):
    extra = dict(value.split("=") for value in pipeline.side_overrides(resolved(num_steps), num_steps)["trainer"])
    steps = int(extra["run.max_steps"])
    assert steps == min(num_steps, pipeline.TRAINER_STEPS)
    view = filled(tmp_path, steps, float(extra["store.segment_gib"]))
    assert (view.total_steps, view.planned, view.leased, view.failed) == (steps, 0, 0, 0)
    assert view.ready >= steps


def test_samples_that_run_short_are_told_before_anyone_waits_for_them(tmp_path):
    large = pipeline.filled_gib(resolved(240), 240)
    with pytest.raises(StartError, match=r"samples of the run are not in the segment.*units ahead"):
        filled(tmp_path / "long", 240, large)
    with pytest.raises(StartError, match=r"raise store\.segment_gib"):
        filled(tmp_path / "small", 24, 1e-6)


def test_a_sample_that_cannot_be_put_ends_the_filling(tmp_path):
    def put(lease):
        raise StartError(f"no room for {lease.key}")

    with pytest.raises(StartError, match="no room"):
        filled(tmp_path, 24, 0.001, put)


def test_a_rank_that_stands_still_is_not_waited_for():
    progress = Progress(0.0)
    progress.check(0, STILL_S)
    progress.check(1, STILL_S + 1)
    progress.check(1, 2 * STILL_S + 1)
    with pytest.raises(StartError, match="after step 1"):
        progress.check(1, 2 * STILL_S + 2)
