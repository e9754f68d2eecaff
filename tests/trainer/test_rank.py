"""One rank in this process: what it tells, how it ends, what it refuses."""

import time

import pytest

from dspark_train.data.dataset import Dataset
from dspark_train.errors import DataError, StartError
from dspark_train.trainer.group import GroupSpec
from dspark_train.trainer.rank import Rank
from tests.trainer.recorded import HubPeers, make_run, wait_for
from tests.trainer.seat import Seat, schedule_path

pytestmark = pytest.mark.torch
QUICK_S = 10.0


@pytest.fixture
def run_dir(tmp_path, tiny_target, recorded_data):
    return make_run(tmp_path / "run", tiny_target, recorded_data)


def test_a_rank_tells_what_it_is_and_trains_to_the_end_and_leaves_nothing_in_the_store(run_dir):
    seat = Seat(run_dir)
    assert seat.status()["state"] == "starting"
    info = seat.start()
    assert info["segment"] == seat.rank._parts.store.segment
    assert (info["capacity_bytes"], info["address"]) == (64 << 20, "127.0.0.1")
    assert seat.status()["state"] == "ready"
    assert seat.join() == {"resumed_step": 0}
    wait_for(lambda: seat.status()["state"] != "training")
    status = seat.status()
    assert (status["state"], status["error"], status["step"], status["unit"]) == ("done", "", 6, 9)
    assert status["checkpoint_step"] == 6
    assert abs(status["checkpoint_at_s"] - time.time()) < 600
    assert status["tokens"] == sum(commit.metrics["tokens"] for commit in seat.hub.commits)
    assert seat.hub.num_released == 3 * sum(len(pack.pieces) for pack in seat.hub.schedule.validation_packs)
    seat.rank.stop(QUICK_S)
    assert seat.server.keys == set()
    seat.rank.stop(QUICK_S)
    assert seat.status()["state"] == "done"


@pytest.mark.real
def test_a_rank_trains_the_same_from_mooncake_and_empties_it(run_dir, mooncake_master):
    from dspark_train.store.on_mooncake import MooncakeClient

    host, port = mooncake_master.rpc.split(":")
    writer = MooncakeClient(
        local_hostname=host, master=mooncake_master.rpc, segment_bytes=0, buffer_bytes=16 << 20, timeout_s=20
    )
    reference, seat = Seat(run_dir), Seat(run_dir)
    reference.start()
    reference.join()
    wait_for(lambda: reference.status()["state"] == "done")
    reference.rank.stop(QUICK_S)
    keys: list[str] = []

    def put(key: str, data: bytes) -> None:
        keys.append(key)
        writer.put(key, data, segment)

    peers = HubPeers(seat.hub, Dataset.open(schedule_path(run_dir)), put)
    seat.rank = Rank(str(run_dir), "rank-0", peers)
    segment = seat.rank.start({"n": host}, {"master.rpc": int(port)})["segment"]
    assert segment
    seat.join()
    wait_for(lambda: seat.status()["state"] != "training")
    assert seat.status()["state"] == "done", seat.status()
    assert [c.metrics["loss"] for c in seat.hub.commits] == [c.metrics["loss"] for c in reference.hub.commits]
    wait_for(lambda: not any(writer.exist(keys)))
    seat.rank.stop(QUICK_S)
    writer.close()


def test_a_rank_that_waits_for_samples_stops_at_once(run_dir):
    seat = Seat(run_dir, withhold_from_unit=2)
    seat.start()
    seat.join()
    wait_for(lambda: seat.status()["unit"] == 2)
    began_s = time.monotonic()
    seat.rank.stop(QUICK_S)
    assert time.monotonic() - began_s < QUICK_S
    assert seat.status()["state"] == "stopped"


def test_a_rank_can_be_taken_into_another_group_while_it_trains_and_goes_on_from_its_memory(run_dir):
    seat = Seat(run_dir, withhold_from_unit=3)
    seat.start()
    seat.join()
    wait_for(lambda: seat.status()["unit"] == 3)
    seat.hub.withhold_from_unit = None
    assert seat.join(generation=2) == {"resumed_step": 2}
    wait_for(lambda: seat.status()["state"] != "training")
    assert [metrics["step"] for metrics in seat.hub.of("train")] == list(range(1, 7))
    assert [metrics["generation"] for metrics in seat.hub.of("train")] == [1, 1, 2, 2, 2, 2]
    seat.rank.stop(QUICK_S)


def test_a_rank_whose_commit_is_refused_stops_and_says_so(run_dir):
    seat = Seat(run_dir, fence_from_unit=1)
    seat.start()
    seat.join()
    wait_for(lambda: seat.status()["state"] != "training")
    status = seat.status()
    assert status["state"] == "broken"
    assert "the ledger refused unit 1 of generation 1" in status["error"]
    answer = seat.rank.halt(QUICK_S)
    assert (answer["step"], answer["uncommitted"].unit) == (1, 1)
    seat.rank.stop(QUICK_S)


def test_a_checkpoint_that_cannot_be_written_costs_no_training_and_the_next_one_is_tried(run_dir):
    (run_dir / "checkpoints").mkdir()
    (run_dir / "checkpoints" / "step-00000003").write_text("in the way")
    seat = Seat(run_dir)
    seat.start()
    seat.join()
    wait_for(lambda: seat.status()["state"] != "training")
    assert seat.status()["state"] == "done"
    assert seat.hub.checkpointed == [6]
    assert sorted(path.name for path in (run_dir / "checkpoints").iterdir()) == [
        "latest",
        "step-00000003",
        "step-00000006",
    ]
    seat.rank.stop(QUICK_S)


def test_a_last_checkpoint_that_cannot_be_written_is_written_once_the_disk_takes_it(run_dir):
    (run_dir / "checkpoints").write_text("in the way")
    seat = Seat(run_dir)
    seat.start()
    seat.join()
    wait_for(lambda: "the last checkpoint was not written" in seat.status()["fault"])
    assert seat.status()["state"] == "training"
    (run_dir / "checkpoints").unlink()
    wait_for(lambda: seat.status()["state"] != "training")
    assert seat.status()["state"] == "done"
    assert seat.hub.checkpointed == [6]
    seat.rank.stop(QUICK_S)


def test_resuming_from_a_checkpoint_that_is_not_there_is_refused_and_the_rank_can_join_again(run_dir):
    from dspark_train.errors import CheckpointError

    seat = Seat(run_dir)
    seat.start()
    with pytest.raises(CheckpointError, match="step-00000003 cannot be loaded"):
        seat.join(resume_step=3)
    assert seat.join(generation=2, resume_step=0) == {"resumed_step": 0}
    wait_for(lambda: seat.status()["state"] != "training")
    assert seat.status()["state"] == "done"
    seat.rank.stop(QUICK_S)


def test_a_group_that_does_not_come_together_is_an_error_naming_where(tmp_path, tiny_target, recorded_data):
    seat = Seat(make_run(tmp_path / "run", tiny_target, recorded_data, trainers={"group_timeout_s": 2}))
    seat.start()
    address, port = seat.rank.reserve_rendezvous()
    with pytest.raises(StartError, match=rf"rank 0 of 2 could not join its group \({address}:{port}, generation 1\)"):
        seat.rank.join(GroupSpec(1, 2, 0, address, port, 0))
    seat.rank.stop(QUICK_S)


def test_a_missing_data_set_ends_the_start_with_what_to_do(tmp_path, tiny_target, recorded_data):
    root = make_run(tmp_path / "run", tiny_target, recorded_data)
    seat = Seat(root)
    text = (root / "resolved.json").read_text().replace(str(recorded_data), str(tmp_path / "none"))
    (root / "resolved.json").write_text(text)
    rank = Rank(str(root), "rank-0", seat.rank._peers, store=seat.rank._given_store)
    with pytest.raises(DataError, match="dspark-train prepare"):
        rank.start({"n": "127.0.0.1"}, {})
