"""What the controller does with members that come up, fail, die and end; on the fake cluster, with stand-ins."""

import json
import threading

import pytest

from dspark_train.controller import crew
from dspark_train.report import state_file
from dspark_train.report.state import exit_code
from dspark_train.trainer import checkpoint_files
from tests.controller.fake_run import Run

# A member that died on the fake cluster leaves threads that end where they next ask it something.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")


@pytest.fixture
def run(tmp_path):
    made = Run(tmp_path / "a1") if (tmp_path / "a1").mkdir() is None else None
    yield made
    made.cluster.end_all()


def test_a_run_comes_up_in_order_and_ends_with_nothing_left(run):
    run.launch()
    state = run.wait("running")
    assert state.controller.url.startswith("http://127.0.0.1:")
    assert run.layout.token.stat().st_mode & 0o777 == 0o600
    run.end("done")
    state = run.wait("done")
    run.wait_empty()
    assert [m.state for pool in state.pools.values() for m in pool.members] == ["stopped"] * 3
    order = [call for call in run.calls if "stop" not in call]
    assert order[0] == "master start"
    assert set(order[1:4]) == {"engine-1.0 start", "rank-0 start", "rank-1 start"}
    assert order[4:7] == [
        "engine-1.0 probe rank-0:1",
        "ledger resume_step 0",
        "ledger set_group ['rank-0', 'rank-1']",
    ]
    assert set(order[7:9]) == {"rank-0 join 0/2 at 5 from None", "rank-1 join 1/2 at 5 from None"}
    assert order[9:] == ["ledger run", "engine-1.0 feed"]
    assert {f"{name} stop" for name in ("engine-1.0", "rank-0", "rank-1", "ledger", "master")} <= set(run.calls)
    assert run.calls[-1] == "master stop"


def test_a_component_that_does_not_start_ends_the_run_with_its_logs_last_lines(run):
    run.fault("engine-1.0", "no-start")
    run.launch()
    state = run.wait("failed")
    assert "engine-1.0 exited with code 1" in state.reason
    assert "logs/engine-1.0.log" in state.reason
    assert "out of memory" in state.reason
    run.wait_empty()


def test_a_rank_in_a_crash_loop_is_given_up_and_the_run_goes_on_with_the_other(tmp_path):
    (tmp_path / "a1").mkdir()
    run = Run(tmp_path / "a1", "supervision.max_deaths=2")
    run.launch()
    run.wait("running")
    run.fault("rank-1", "nan")
    run.until(lambda: "rank.given_up" in run.kinds)
    run.until(lambda: [m.state for m in run.state.pools["trainers"].members] == ["ready", "dead"])
    assert any("loss is NaN at step 3" in fault for fault in run.state.faults)
    assert exit_code(run.state) == 4
    run.cluster.end_all()


def test_ranks_that_all_fail_at_the_same_step_again_and_again_end_the_run_with_the_reason(run):
    run.launch()
    run.wait("running")
    run.fault("rank-0", "nan")
    run.fault("rank-1", "nan")
    assert "loss is NaN at step 3" in run.wait("failed").reason
    run.wait_empty()


def test_a_dead_rank_is_left_out_at_once_and_replaced_at_a_boundary(run):
    run.launch()
    run.wait("running")
    run.cluster.kill("rank-0")
    run.until(lambda: run.kinds.count("group.formed") == 3)
    calls = [call for call in run.calls if "rank-" in call][-8:]
    assert calls[:6] == [
        "rank-1 halt",
        "ledger set_group ['rank-1']",
        "rank-1 join 0/1 at 5 from None",
        "rank-0 start",
        "rank-0 warm",
        "ledger announce_group ['rank-1', 'rank-0']",
    ]
    assert set(calls[6:]) == {"rank-1 expect 0/2 at 7", "rank-0 join 1/2 at 7 from None"}
    run.until(lambda: run.state.pools["trainers"].ready == 2)
    assert run.state.faults == []
    assert run.state.generation == 3


def test_the_others_are_asked_after_while_a_group_takes_long_to_form(run, monkeypatch):
    run.launch()
    run.wait("running")
    asked, ask_all = set(), crew.Crew.ask_all

    def noting(self, names):
        if threading.current_thread().name == "keep awake":
            asked.update(names)
        return ask_all(self, names)

    monkeypatch.setattr(crew, "AWAKE_S", 0.01)
    monkeypatch.setattr(crew.Crew, "ask_all", noting)
    (run.layout.root / "slow-join").touch()
    run.cluster.kill("rank-0")
    run.until(lambda: {"engine-1.0", "ledger", "master", "rank-1"} <= asked)
    assert run.kinds.count("group.formed") == 1
    (run.layout.root / "slow-join").unlink()
    run.until(lambda: run.kinds.count("group.formed") == 3)


def test_a_dead_engine_gives_its_leases_back_and_is_replaced(run):
    run.launch()
    run.wait("running")
    run.cluster.kill("engine-1.0")
    run.until(lambda: "engine.dead" in run.kinds)
    dead = next(event for event in run.events if event["kind"] == "engine.dead")
    assert dead["text"].startswith("engine-1.0 died: ")
    assert "2 samples went back" in dead["text"]
    run.until(lambda: "engine.feeding" in run.kinds)
    run.until(lambda: run.state.pools["inference"].ready == 1)
    assert run.state.faults == []
    assert run.state.state == "running"


def test_an_engine_in_a_crash_loop_is_given_up_and_the_run_ends_where_it_was_the_last(tmp_path):
    (tmp_path / "a1").mkdir()
    run = Run(tmp_path / "a1", "supervision.max_deaths=2")
    run.launch()
    run.wait("running")
    run.fault("engine-1.0", "no-start")
    run.cluster.kill("engine-1.0")
    state = run.wait("failed")
    assert "no engine is left: engine-1 died 2 times" in state.reason
    assert "out of memory" in state.reason
    run.wait_empty()


def test_engines_grow_without_a_word_to_the_ranks_and_drain_when_they_shrink(run):
    run.launch()
    run.wait("running")
    code, made = run.scale(inference="+1")
    assert (code, made["num_to"], made["starts"]) == (
        200,
        {"inference": 2},
        [{"name": "engine-2.0", "node": "set0-shared-0"}],
    )
    ended = run.ended("t1")
    assert (ended["state"], ended["pause_s"]) == ("done", 0.0)
    assert not any("rank" in call and ("expect" in call or "halt" in call) for call in run.calls)
    assert run.state.pools["inference"].ready == 2
    assert run.scaled(inference="1")["state"] == "done"
    assert run.calls[-2:] == ["engine-2.0 drain", "engine-2.0 stop"]
    assert [m.name for m in run.state.pools["inference"].members] == ["engine-1.0"]


def test_ranks_come_and_go_at_announced_boundaries_and_the_pause_is_told(run):
    run.launch()
    run.wait("running")
    ended = run.scaled(trainers="3")
    assert (ended["state"], ended["pause_s"]) == ("done", 0.25)
    assert run.scaled(trainers="1")["state"] == "done"
    assert "ledger announce_group ['rank-0']" in run.calls
    run.until(lambda: [m.name for m in run.state.pools["trainers"].members] == ["rank-0"])
    assert {"rank-1 stop", "rank-2 stop"} <= set(run.calls)


def test_a_rank_that_dies_while_it_is_told_of_the_next_group_costs_a_new_group_and_not_the_run(run):
    run.launch()
    run.wait("running")
    run.fault("rank-0", "no-expect")
    assert run.scaled(trainers="3")["state"] == "done"
    kinds = run.kinds
    assert kinds.count("group.formed") == 3
    assert any("not all could be told" in event["text"] for event in run.events)
    assert run.state.pools["trainers"].ready == 3


def test_a_checkpoint_that_cannot_be_written_is_a_fault_until_the_next_one_is(run):
    run.launch()
    run.wait("running")
    run.fault("rank-0", "full")
    run.until(lambda: run.state.faults == ["no space left on device"])
    assert exit_code(run.state) == 4
    (run.layout.root / "fault-rank-0").unlink()
    run.until(lambda: run.state.faults == [])
    assert "checkpoint.failed" in run.kinds


def test_a_member_that_does_not_start_rolls_the_transaction_back(run):
    run.launch()
    run.wait("running")
    run.fault("engine-2.0", "no-start")
    ended = run.scaled(inference="2", trainers="3")
    assert ended["state"] == "rolled back"
    assert "engine-2 did not start" in ended["reason"]
    assert "out of memory" in ended["reason"]
    run.until(lambda: not run.names("engine-2") and not run.names("rank-2"))
    assert (run.state.pools["inference"].desired, run.state.pools["trainers"].desired) == (1, 2)
    run.until(lambda: run.state.faults == [])
    assert exit_code(run.state) == 0
    assert run.state.state == "running"


def test_orders_that_cannot_be_had_change_nothing(run):
    run.launch()
    run.wait("running")
    assert run.scale(inference="9")[0] == 422
    assert "engines.count.max" in run.scale(inference="9")[1]["detail"]
    assert run.scale(trainers="lots")[0] == 422
    assert run.scale(trainers="-5")[0] == 422
    code, made = run.scale(inference="+1", dry_run=True)
    assert (code, [p["name"] for p in made["starts"]]) == (200, ["engine-2.0"])
    assert run.scale(inference="1")[1]["state"] == "done"
    assert run.state.transaction is None
    (run.layout.root / "slow-engine-2.0").touch()
    assert run.scale(inference="2")[0] == 200
    assert run.scale(trainers="3")[0] == 409
    (run.layout.root / "slow-engine-2.0").unlink()
    assert run.ended("t1")["state"] == "done"


def test_a_dead_master_comes_back_on_its_ports_and_what_was_ready_is_made_anew(run):
    run.launch()
    run.wait("running")
    run.fault("master", "dead")
    run.until(lambda: "store.replaced" in run.kinds)
    assert "master reserve {'rpc': 20002, 'metrics': 20003}" in run.calls
    assert "ledger lose_store" in run.calls
    run.until(lambda: run.state.faults == [])


def test_a_dead_ledger_is_started_after_the_last_committed_step_and_the_ranks_go_on_with_what_they_have(run):
    run.launch()
    run.wait("running")
    run.cluster.kill("ledger")
    run.until(lambda: "ledger.replaced" in run.kinds)
    assert "ledger resume_step None" in run.calls
    assert "rank-0 join 0/2 at 5 from None" in run.calls
    run.until(lambda: run.state.faults == [])
    assert run.state.generation == 2


def test_a_controller_that_is_started_again_adopts_the_run_without_a_word_to_the_data_plane(run):
    run.launch()
    run.wait("running")
    run.until(lambda: run.layout.roster.exists())
    before = len(run.calls)
    run.cluster.crash("controller")
    run.until(lambda: "controller.adopted" in run.kinds)
    run.until(lambda: run.state.pools["trainers"].ready == 2)
    assert [call for call in run.calls[before:] if call != "engine-1.0 feed"] == []
    assert run.scaled(inference="2")["state"] == "done"
    run.end("done")
    run.wait("done")
    run.wait_empty()


def test_a_stop_order_ends_the_run_stopped(run):
    run.launch()
    state = run.wait("running")
    body = {"now": False}
    assert state_file.request(run.layout, state.controller.url, "POST", "/v1/stop", body=body, timeout_s=5) is not None
    run.wait("stopped")
    assert "ledger announce_stop False" in run.calls
    run.wait_empty()


def test_the_api_refuses_whoever_has_no_token(run):
    run.launch()
    state = run.wait("running")
    run.layout.token.write_text("wrong")
    assert state_file.ask(run.layout, state.controller.url, timeout_s=5) is None


def test_a_resumed_run_passes_over_a_damaged_checkpoint_and_says_so(run):
    for step in (20, 40):
        partial = checkpoint_files.partial_dir(run.layout.checkpoints, step)
        partial.mkdir(parents=True)
        (partial / "data").write_bytes(b"weights")
        meta = checkpoint_files.Meta(
            step=step, unit=step, epoch=0, config="", sharding="replicate", world_size=1, saved_at_s=0.0
        )
        checkpoint_files.publish(run.layout.checkpoints, meta)
    (checkpoint_files.step_dir(run.layout.checkpoints, 40) / "data").write_bytes(b"weighty")
    run.launch(resume=True)
    state = run.wait("running")
    assert "ledger resume_step 20" in run.calls
    assert "rank-0 join 0/2 at 5 from 20" in run.calls
    assert "the checkpoint of step 40 is not used" in state.faults[0]
    kinds = [json.loads(line)["kind"] for line in run.layout.events.read_text().splitlines()]
    assert "checkpoint.rejected" in kinds


def test_a_resume_without_any_checkpoint_is_refused_and_leaves_nothing(run):
    run.launch(resume=True)
    assert "can be loaded" in run.wait("failed").reason
    run.wait_empty()
