import asyncio
import json
from pathlib import Path

import numpy as np
import pytest

from dspark_train.controller import ledger_service
from dspark_train.controller.ledger_service import LedgerService
from dspark_train.errors import DataError, TopologyError
from dspark_train.plan.run_layout import RunLayout
from dspark_train.schedule.layout import SampleLayout
from dspark_train.schedule.messages import Commit, Lost, Member, Ready
from dspark_train.topology.resolve import TargetFacts, resolve
from dspark_train.topology.schema import Topology

PATIENCE_S = 20.0
LENGTHS = np.full(40, 30)
MEMBERS = [Member("rank-0", "host-0:1", 10**7), Member("rank-1", "host-1:1", 10**7)]


def resolved(data_path="data", hidden_size=8, **ledger):
    topology = Topology.model_validate(
        {
            "name": "t",
            "target": {"model": "m", "layers": [1], "shape": {"num_layers": 4, "hidden_size": hidden_size}},
            "data": {"path": str(data_path), "seq_len": 64, "step_packs": 4, "validation_frac": 0.1},
            "nodes": {"shared": {"count": 1, "gpus": 0}},
            "engines": {"count": {"start": 1, "max": 1}},
            "trainers": {"ranks": {"start": 2, "max": 2}},
            "store": {"segment_gib": 1},
            "run": {"seed": 5, "epochs": 1},
            "validation": {"every_steps": 2},
            "ledger": ledger,
        }
    )
    return resolve(topology, TargetFacts())


class Clock:
    """A clock that stands still until told."""

    def __init__(self):
        self.now_s = 100.0

    def __call__(self):
        return self.now_s


def service(run_dir, resume_step=0, clock=None, **kwargs):
    return LedgerService(
        str(run_dir), resume_step, resolved=resolved(**kwargs), lengths_tokens=LENGTHS, clock=clock or Clock()
    )


async def started(run_dir, **kwargs):
    made = service(run_dir, **kwargs)
    await made.set_group(MEMBERS, 1)
    await made.run()
    return made


def num_bytes(lease):
    return SampleLayout(lease.num_tokens, 2 * 8 * 4).total_bytes


async def work(made, engine="engine-1.0", wait_s=0.0):
    leases = await made.lease(engine, 1000, 10**9, wait_s)
    await made.report(engine, [Ready(lease.key, num_bytes(lease)) for lease in leases], [])
    return leases


async def train(made, unit, generation=1, **metrics):
    for member in MEMBERS:
        reply = await made.take(member.name, unit, 0.0)
        assert reply.complete, reply
    return await made.commit(Commit(unit, generation, {"loss": 1.0 / (unit + 1), **metrics}))


def lines(path: Path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def play(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, PATIENCE_S))


def test_a_run_from_the_first_unit_to_done_leaves_each_step_and_round_once(tmp_path):
    async def scenario():
        made = await started(tmp_path)
        await work(made)
        unit = 0
        while (await made.view()).state == "running":
            assert await train(made, unit)
            unit += 1
        assert (await made.take("rank-0", unit, 5.0)).kind == "done"
        view = await made.view()
        await made.stop(1.0)
        await made.stop(1.0)
        return view

    view = play(scenario())
    layout = RunLayout(tmp_path)
    assert view.state == "done"
    assert (view.step, view.total_steps, view.trained, view.planned) == (5, 5, 36 + 4 * 4, 0)
    assert [line["step"] for line in lines(layout.metrics)] == [1, 2, 3, 4, 5]
    assert [line["step"] for line in lines(layout.validation)] == [0, 2, 4, 5]
    assert view.last_metrics["loss"] == lines(layout.metrics)[-1]["loss"]
    assert view.last_validation["step"] == 5
    assert view.done_tokens_by == {"engine-1.0": 52 * 30}


def test_files_of_the_run_and_its_data_set_are_read(tmp_path):
    (tmp_path / "data").mkdir()
    np.save(tmp_path / "data" / "lengths.npy", LENGTHS)
    layout = RunLayout(tmp_path / "run")
    layout.root.mkdir()
    layout.resolved.write_text(resolved(data_path=tmp_path / "data").model_dump_json())

    async def scenario():
        made = LedgerService(run_dir=str(layout.root), resume_step=0, peers=None)
        await made.set_group(MEMBERS, 1)
        await made.run()
        (lease,) = await made.lease("e", 1, 64, 0.0)
        return lease

    lease = play(scenario())
    assert lease.key.startswith("run/")
    assert lease.key.endswith("/0-0-0-1")
    assert lease.segment == "host-0:1"


def test_a_missing_data_set_says_how_to_make_it(tmp_path):
    with pytest.raises(DataError, match=r"nowhere/lengths\.npy: cannot be read .*: make the data set: dspark-train"):
        LedgerService(str(tmp_path), 0, resolved=resolved(data_path="nowhere"))


def test_an_unknown_size_of_samples_is_refused(tmp_path):
    with pytest.raises(TopologyError, match=r"target\.shape\.hidden_size is not known"):
        service(tmp_path, hidden_size=None)


def test_keys_of_two_lives_of_a_ledger_differ(tmp_path):
    async def first_key():
        return (await (await started(tmp_path)).lease("e", 1, 64, 0.0))[0].key

    assert play(first_key()) != play(first_key())


# -- long polls --------------------------------------------------------------------------------------------------------


def test_an_engine_that_waits_is_woken_when_the_run_begins(tmp_path):
    async def scenario():
        made = service(tmp_path)
        waiting = asyncio.create_task(made.lease("e", 2, 1000, PATIENCE_S))
        await made.set_group(MEMBERS, 1)
        await asyncio.sleep(0)
        assert not waiting.done()
        await made.run()
        return await waiting

    assert len(play(scenario())) == 2


def test_a_rank_that_waits_is_woken_by_each_sample(tmp_path):
    async def scenario():
        made = await started(tmp_path)
        waiting = asyncio.create_task(made.take("rank-0", 0, PATIENCE_S))
        await asyncio.sleep(0)
        (lease,) = await made.lease("e", 1, 64, 0.0)
        await made.report("e", [Ready(lease.key, num_bytes(lease))], [])
        return lease, await waiting

    lease, reply = play(scenario())
    assert [sample.key for sample in reply.samples] == [lease.key]
    assert not reply.complete


def test_waiting_ends_with_nothing_after_the_time_asked_for(tmp_path):
    async def scenario():
        made = service(tmp_path)
        await made.set_group(MEMBERS, 1)
        assert await made.lease("e", 1, 64, 0.01) == []
        reply = await made.take("rank-0", 0, 0.01)
        assert (reply.kind, reply.samples, reply.complete) == ("samples", (), False)

    play(scenario())


def test_no_call_is_held_open_beyond_the_longest_wait(tmp_path, monkeypatch):
    monkeypatch.setattr(ledger_service, "MAX_WAIT_S", 0.01)

    async def scenario():
        assert await service(tmp_path).lease("e", 1, 64, 1e6) == []

    play(scenario())


def test_an_engine_that_waits_for_room_is_woken_by_a_commit(tmp_path):
    async def scenario():
        made = service(tmp_path)
        one_step = 1.2 * 4 * SampleLayout(30, 64).total_bytes
        await made.set_group([Member(m.name, m.segment, int(one_step / 0.9)) for m in MEMBERS], 1)
        await made.run()
        await work(made)
        waiting = asyncio.create_task(made.lease("e", 1, 64, PATIENCE_S))
        await asyncio.sleep(0)
        assert not waiting.done()
        assert await train(made, 0)
        return await waiting

    assert len(play(scenario())) == 1


def test_a_rank_that_waits_is_told_of_a_sample_given_up(tmp_path):
    async def scenario():
        made = await started(tmp_path, max_attempts=1, max_failed_frac=1.0)
        (lease,) = await made.lease("e", 1, 64, 0.0)
        waiting = asyncio.create_task(made.take("rank-0", 0, PATIENCE_S))
        await asyncio.sleep(0)
        await made.report("e", [], [Lost(lease.key, "HTTP 500")])
        return await waiting

    assert play(scenario()).failed == ((0, 0),)


def test_a_stop_wakes_ranks(tmp_path):
    async def scenario():
        made = await started(tmp_path)
        waiting = asyncio.create_task(made.take("rank-0", 0, PATIENCE_S))
        await asyncio.sleep(0)
        assert await made.announce_stop(False) == 0
        return await waiting

    assert play(scenario()).kind == "stop"


def test_a_lease_that_runs_out_goes_to_an_engine_that_waits(tmp_path, monkeypatch):
    monkeypatch.setattr(ledger_service, "EXPIRE_EVERY_S", 0.001)

    async def scenario():
        clock = Clock()
        made = await started(tmp_path, clock=clock, lease_s=60)
        first = await made.lease("hung", 1000, 10**9, 0.0)
        waiting = asyncio.create_task(made.lease("e", 1000, 10**9, PATIENCE_S))
        await asyncio.sleep(0.01)
        assert not waiting.done()
        clock.now_s += 60
        again = await waiting
        assert [lease.sample for lease in again] == [lease.sample for lease in first]
        late = await made.report("hung", [Ready(first[0].key, num_bytes(first[0]))], [])
        assert first[0].key in late

    play(scenario())


def test_a_thousand_engines_wait_without_holding_each_other_up(tmp_path):
    async def scenario():
        made = service(tmp_path)
        waiting = [asyncio.create_task(made.lease(f"e{i}", 1, 64, PATIENCE_S)) for i in range(1000)]
        await made.set_group(MEMBERS, 1)
        await made.run()
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.sleep(0.05)
        for task in waiting:
            task.cancel()
        leases = [lease for task in waiting if task.done() and not task.cancelled() for lease in task.result()]
        return leases, (await made.view()).leased

    leases, num_leased = play(scenario())
    assert len({lease.key for lease in leases}) == len(leases) == num_leased == 52


# -- committing and resuming -------------------------------------------------------------------------------------------


def test_a_commit_is_written_before_it_is_accepted_and_once(tmp_path):
    async def scenario():
        made = await started(tmp_path)
        await work(made)
        await train(made, 0)
        assert not await made.commit(Commit(2, 1, {"loss": 1.0}))
        assert not await made.commit(Commit(1, 1, {"loss": 1.0}))
        assert await train(made, 1)
        assert await made.commit(Commit(1, 1, {"loss": 7.0}))
        assert not await made.commit(Commit(1, 0, {"loss": 7.0}))

    play(scenario())
    assert [(line["step"], line["loss"]) for line in lines(RunLayout(tmp_path).metrics)] == [(1, 0.5)]


def test_a_line_that_cannot_be_written_commits_nothing(tmp_path, monkeypatch):
    async def scenario():
        made = await started(tmp_path)
        await work(made)
        await train(made, 0)
        with monkeypatch.context() as broken:
            broken.setattr(made._log, "append", full_disk)
            with pytest.raises(OSError, match="no space"):
                await train(made, 1)
        assert await made.commit(Commit(1, 1, {}))

    def full_disk(*args):
        raise OSError("no space left on device")

    play(scenario())


def test_a_resumed_run_continues_after_its_checkpoint_and_drops_what_came_later(tmp_path):
    async def first_life():
        made = await started(tmp_path)
        await work(made)
        for unit in range(5):
            assert await train(made, unit)
        await made.checkpointed(2)
        view = await made.view()
        await made.stop()
        return view

    async def second_life():
        made = service(tmp_path, resume_step=2)
        assert await made.set_group(MEMBERS, 1) == 4
        await made.run()
        await work(made)
        for unit in range(4, 9):
            assert await train(made, unit, life=2)
        view = await made.view()
        await made.stop()
        return view

    view = play(first_life())
    assert (view.step, view.checkpoint_step) == (3, 2)
    view = play(second_life())
    assert (view.state, view.trained, view.planned) == ("done", 52, 0)
    layout = RunLayout(tmp_path)
    assert [line["step"] for line in lines(layout.metrics)] == [1, 2, 3, 4, 5]
    assert [line.get("life") for line in lines(layout.metrics)] == [None, None, 2, 2, 2]
    assert [line["step"] for line in lines(layout.validation)] == [0, 2, 4, 5]


def test_a_run_stopped_before_its_validation_round_does_the_round_first(tmp_path):
    async def first_life():
        made = await started(tmp_path)
        await work(made)
        for unit in range(3):
            await train(made, unit)
        await made.stop()

    async def second_life():
        made = service(tmp_path, resume_step=2)
        unit = await made.set_group(MEMBERS, 1)
        await made.stop()
        return unit, (await made.view()).last_metrics["step"]

    play(first_life())
    assert [line["step"] for line in lines(RunLayout(tmp_path).validation)] == [0]
    assert play(second_life()) == (3, 2)


def test_a_released_sample_makes_room_before_the_commit(tmp_path):
    async def scenario():
        made = await started(tmp_path)
        await work(made)
        before = (await made.view()).resident_bytes
        (sample, *_) = (await made.take("rank-0", 0, 0.0)).samples
        await made.release("rank-0", [sample.key])
        assert before - (await made.view()).resident_bytes == sample.num_bytes

    play(scenario())


def test_dropping_an_engine_and_losing_a_sample_are_answered(tmp_path):
    async def scenario():
        made = await started(tmp_path)
        leases = await made.lease("e", 3, 1000, 0.0)
        assert await made.drop_engine("e") == 3
        again = await work(made, "f")
        assert [lease.sample for lease in again[:3]] == [lease.sample for lease in leases]
        (sample, *_) = (await made.take("rank-0", 0, 0.0)).samples
        await made.lost("rank-0", [Lost(sample.key, "not finite")])
        assert (await made.lease("f", 1, 64, 0.0))[0].attempt == 3

    play(scenario())
