"""Nodes are left while a run goes on: by hand, and as the cluster is asked to; on the fake cluster, with stand-ins."""

from pathlib import Path

import pytest

from dspark_train.cluster.protocol import NodeInfo
from dspark_train.controller import drain_watch, engine_pool, trainer_pool
from dspark_train.controller.draining import change, find_nodes
from dspark_train.controller.roster import Roster
from dspark_train.errors import UsageError
from dspark_train.plan.build import build_plan
from dspark_train.plan.growth import member_names
from dspark_train.topology.facts import TargetFacts
from dspark_train.topology.load import load
from dspark_train.topology.resolve import resolve
from tests.controller.fake_run import Run

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")

NODES = "nodes={inference: {count: 2, gpus: 0}, training: {count: 2, gpus: 0}}"
APART = (NODES, "engines.count.start=2", "trainers.ranks.start=2")
SPAN = (
    "nodes={inference: {count: 2, gpus: 0}, training: {count: 1, gpus: 0}}",
    "engines.nodes_per_engine=2",
    "engines.tensor_parallel=2",
    "trainers.ranks.start=1",
    "target.shape.num_layers=30",
)
ROLES = {1: "training", 2: "training", 3: "inference", 4: "inference"}


def node(number, role, **changes):
    address = "127.0.0.1" if number == 1 else f"127.0.0.{number}"
    return NodeInfo(f"n{number:06}", address, labels={"dspark-role": role}, **changes)


@pytest.fixture
def begin(tmp_path, monkeypatch):
    """Launches a run on these nodes, the first of which is the head."""
    for module, name in ((engine_pool, "RETRY_S"), (trainer_pool, "RETRY_S"), (drain_watch, "LOOK_S")):
        monkeypatch.setattr(module, name, 0.05)
    monkeypatch.setattr(drain_watch, "AGAIN_S", 0.1)
    (tmp_path / "a1").mkdir()
    made = []

    def launch(*overrides, roles=ROLES):
        nodes = [node(number, role, is_head=number == 1) for number, role in roles.items()]
        run = Run(tmp_path / "a1", *overrides, nodes=nodes)
        made.append(run)
        run.launch()
        run.wait("running")
        return run

    yield launch
    for run in made:
        run.cluster.end_all()


def where(run):
    return {m.name: int(m.node.rpartition(".")[2]) for pool in run.state.pools.values() for m in pool.members}


def after(run, *texts):
    """Where the calls are that begin so, in the order they were made."""
    return [next(place for place, call in enumerate(run.calls) if call.startswith(text)) for text in texts]


def test_an_engine_is_up_elsewhere_before_the_one_on_a_drained_node_goes(begin):
    run = begin(*APART)
    run.until(lambda: where(run) == {"rank-0": 1, "rank-1": 2, "engine-1.0": 3, "engine-2.0": 4})
    run.cluster.join_node(node(5, "inference"))
    ended = run.scaled(drain=["127.0.0.3"])
    assert (ended["state"], ended["retires"], ended["moves"], ended["pause_s"]) == ("done", ["engine-1"], [], 0.0)
    run.until(lambda: where(run) == {"rank-0": 1, "rank-1": 2, "engine-2.0": 4, "engine-3.0": 5})
    fed, drained, stopped = after(run, "engine-3.0 feed", "engine-1.0 drain", "engine-1.0 stop")
    assert fed < drained < stopped
    assert (run.state.drained, run.state.pinned, run.state.pools["inference"].desired) == (["127.0.0.3"], [], 2)
    assert run.state.faults == []


def test_a_rank_on_a_drained_node_leaves_at_the_boundary_at_which_another_joins(begin):
    run = begin(*APART)
    run.cluster.join_node(node(5, "training"))
    ended = run.scaled(drain=["n000002"])
    assert (ended["state"], ended["retires"], ended["pause_s"]) == ("done", ["rank-1"], 0.25)
    assert "ledger announce_group ['rank-0', 'rank-2']" in run.calls
    run.until(lambda: where(run) == {"rank-0": 1, "rank-2": 5, "engine-1.0": 3, "engine-2.0": 4})


def test_the_only_rank_stays_until_another_has_learnt_its_state(begin):
    run = begin(*APART)
    run.cluster.crash("rank-0")
    run.until(lambda: "ledger announce_group ['rank-1', 'rank-0']" in run.calls)
    run.until(lambda: run.state.pools["trainers"].ready == 2 and not run.state.faults)
    assert run.scaled(trainers="1")["state"] == "done"
    run.until(lambda: where(run) == {"rank-1": 2, "engine-1.0": 3, "engine-2.0": 4})
    assert run.scaled(drain=["127.0.0.2"])["state"] == "done"
    groups = [call for call in run.calls if call.startswith("ledger announce_group")]
    assert groups[-2:] == ["ledger announce_group ['rank-1', 'rank-0']", "ledger announce_group ['rank-0']"]


def test_the_node_of_controller_ledger_and_master_cannot_be_left(begin):
    run = begin(*APART)
    code, answer = run.scale(drain=["127.0.0.1"])
    assert code == 422
    assert "127.0.0.1 holds controller, ledger, master" in answer["detail"]
    assert "launch --resume" in answer["detail"]


def test_with_a_smaller_pool_those_on_the_drained_node_are_the_ones_that_go(begin):
    run = begin(*APART)
    code, answer = run.scale(inference="-1", drain=["127.0.0.3"], dry_run=True)
    assert (code, answer["starts"], [one["name"] for one in answer["stops"]]) == (200, [], ["engine-1.0"])
    assert run.scaled(inference="-1", drain=["127.0.0.3"])["state"] == "done"
    run.until(lambda: where(run) == {"rank-0": 1, "rank-1": 2, "engine-2.0": 4})
    assert not any(call == "engine-2.0 drain" for call in run.calls)
    assert run.state.pinned == ["inference"]
    assert run.scaled(undrain=["127.0.0.3"])["state"] == "done"
    assert run.state.drained == []
    assert run.scaled(inference="2")["state"] == "done"
    run.until(lambda: where(run).get("engine-3.0") == 3)


def test_an_order_without_room_is_refused_with_what_is_missing_and_changes_nothing(begin):
    run = begin(*SPAN, roles={1: "training", 3: "inference", 4: "inference"})
    code, answer = run.scale(drain=["127.0.0.4"])
    assert code == 422
    assert "engine-1 cannot leave its nodes: no node with 0 GPUs is left for set0-inference-1" in answer["detail"]
    assert run.scale(drain=["127.0.0.9"])[1]["detail"].startswith("127.0.0.9: no node of that name; there are: 127.0")
    assert (run.state.drained, run.state.transaction) == ([], None)
    assert where(run) == {"rank-0": 1, "engine-1.0": 3, "engine-1.1": 4}


def test_an_engine_over_two_nodes_ends_first_where_its_place_needs_the_node_that_stays(begin):
    run = begin(*SPAN, roles={1: "training", 3: "inference", 4: "inference"})
    run.cluster.join_node(node(5, "inference"))
    ended = run.scaled(drain=["127.0.0.4"])
    assert (ended["state"], ended["retires"], ended["moves"]) == ("done", [], ["engine-1"])
    run.until(lambda: where(run) == {"rank-0": 1, "engine-1.0": 3, "engine-1.1": 5})
    assert run.calls.count("engine-1.0 drain") == 1
    assert "engine.dead" not in run.kinds


def test_a_replacement_that_does_not_start_rolls_back_and_the_node_is_used_as_before(begin):
    run = begin(*APART)
    run.cluster.join_node(node(5, "inference"))
    run.fault("engine-3.0", "no-start")
    ended = run.scaled(drain=["127.0.0.3"])
    assert (ended["state"], run.state.drained) == ("rolled back", [])
    assert "engine-3 did not start" in ended["reason"]
    run.until(lambda: where(run) == {"rank-0": 1, "rank-1": 2, "engine-1.0": 3, "engine-2.0": 4})
    run.until(lambda: run.state.faults == [])
    assert "engine-1.0 drain" not in run.calls


def test_a_node_that_the_cluster_is_asked_to_drain_is_left_as_soon_as_there_is_room(begin):
    run = begin(*SPAN, roles={1: "training", 3: "inference", 4: "inference"})
    run.cluster.drain_node("n000003", leaves_at_s=9e9)
    run.until(lambda: any("has no other" in fault for fault in run.state.faults))
    assert "node.leaving" in run.kinds
    assert where(run) == {"rank-0": 1, "engine-1.0": 3, "engine-1.1": 4}
    run.cluster.join_node(node(5, "inference"))
    run.until(lambda: where(run) == {"rank-0": 1, "engine-1.0": 5, "engine-1.1": 4})
    run.until(lambda: run.state.faults == [] and run.state.drained == ["127.0.0.3"])
    run.cluster.lose_node("n000003")
    assert "engine.dead" not in run.kinds


def test_a_run_whose_own_node_is_to_go_stops_with_a_checkpoint(begin):
    run = begin(*APART)
    run.cluster.drain_node("n000001")
    state = run.wait("stopped")
    assert "announce_stop False" in " ".join(run.calls)
    assert any("127.0.0.1 is asked to leave the cluster, and holds" in event["text"] for event in run.events)
    assert state.faults == []


def test_a_controller_that_is_started_again_goes_on_leaving_the_node(begin):
    run = begin(*APART)
    run.cluster.join_node(node(5, "inference"))
    (run.layout.root / "slow-engine-3.0").touch()
    code, made = run.scale(drain=["127.0.0.3"])
    assert code == 200
    run.until(lambda: "engine-3.0 start" in run.calls)
    run.cluster.crash("controller")
    (run.layout.root / "slow-engine-3.0").unlink()
    assert run.ended(made["id"])["state"] == "done"
    run.until(lambda: where(run) == {"rank-0": 1, "rank-1": 2, "engine-2.0": 4, "engine-3.0": 5})


def test_nodes_are_found_by_address_id_and_planned_name():
    nodes = [NodeInfo("abcdef01", "10.0.0.1"), NodeInfo("abcdef02", "10.0.0.2")]
    bound = {"set0-inference-0": nodes[1]}
    for text in ("10.0.0.2", "abcdef02", "set0-inference-0"):
        assert find_nodes([text], bound, nodes, {}) == {"abcdef02": "10.0.0.2"}
    assert find_nodes(["10.0.0.7"], bound, nodes, {"gone": "10.0.0.7"}) == {"gone": "10.0.0.7"}
    for text in ("abcdef", "abc", "10.0.0.3"):
        with pytest.raises(UsageError, match=r"10\.0\.0\.1 \(abcdef01\)"):
            find_nodes([text], bound, nodes, {})


def test_retired_members_do_not_come_back():
    assert member_names("engine", 2, ["engine-1"]) == ["engine-2", "engine-3"]
    assert member_names("rank", 3, ["rank-1"]) == ["rank-0", "rank-2", "rank-3"]


@pytest.fixture(scope="module")
def rack():
    """The three-node GB300 set: its plan, and what its nodes are."""
    path = Path(__file__).parents[2] / "topologies" / "gb300-3node.yaml"
    resolved = resolve(load(path, ("target.shape.num_layers=93",)), TargetFacts())
    plan = build_plan(resolved)
    return resolved, plan, {name: gpu_node(number) for number, name in enumerate((n.name for n in plan.nodes), start=1)}


def gpu_node(number):
    return NodeInfo(str(number), f"10.0.0.{number}", num_gpus=4)


def drained(rack, spares, *numbers, num_engines=1):
    resolved, plan, bound = rack
    away = {bound[plan.nodes[number].name].id: bound[plan.nodes[number].name].address for number in numbers}
    usable = [node for node in (*bound.values(), *map(gpu_node, spares)) if node.id not in away]
    roster = Roster(num_desired={"inference": 1, "trainers": resolved.topology.trainers.ranks.start})
    after = {**roster.num_desired, "inference": num_engines}
    return change(plan, resolved, roster, bound, usable, after, away)


def test_an_engine_over_two_gpu_nodes_is_replaced_beforehand_with_two_spares_and_moves_with_one(rack):
    two = drained(rack, (7, 8), 0)
    assert (two.retires, two.moves) == (["engine-1"], [])
    assert {two.bound[p.node].id for p in two.plan.processes if p.name.startswith("engine-2.")} == {"7", "8"}
    one = drained(rack, (7,), 0)
    assert (one.retires, one.moves) == ([], ["engine-1"])
    assert one.plan.processes == rack[1].processes
    with pytest.raises(UsageError, match=r"engine-1 cannot leave its nodes: .*--inference -1"):
        drained(rack, (), 0)


def test_ranks_need_gpus_elsewhere_and_an_engine_is_not_blamed_for_their_lack(rack):
    resolved, plan, bound = rack
    head = next(number for number, node in enumerate(plan.nodes) if node.role == "training")
    with pytest.raises(UsageError, match="holds controller, ledger, master"):
        drained(rack, (7, 8, 9), head)
    apart = plan.model_copy(
        update={
            "processes": tuple(
                p.model_copy(update={"node": plan.nodes[0].name}) if p.name in ("controller", "ledger", "master") else p
                for p in plan.processes
            )
        }
    )
    with pytest.raises(
        UsageError, match=r"rank-4 has no GPU: those of 3 nodes are taken, or drained \(set0-training-0\)"
    ):
        drained((resolved, apart, bound), (), head)
    moved = drained((resolved, apart, bound), (7,), head)
    assert moved.retires == ["rank-0", "rank-1", "rank-2", "rank-3"]
    assert {moved.bound[p.node].id for p in moved.plan.processes if p.name in ("rank-4", "rank-7")} == {"7"}
