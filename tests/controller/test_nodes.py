"""Nodes are lost, come back, and join while a run goes on; on the fake cluster, with stand-ins for the members."""

import pytest

from dspark_train.cluster.protocol import NodeInfo
from dspark_train.controller import engine_pool, trainer_pool
from tests.controller.fake_run import Run

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")

SET = (
    "nodes={inference: {count: 2, gpus: 0}, training: {count: 1, gpus: 0}}",
    "engines.nodes_per_engine=2",
    "engines.tensor_parallel=2",
    "trainers.ranks.start=1",
    "target.shape.num_layers=30",
    "supervision.silence_s=0.4",
)


def node(number, **changes):
    return NodeInfo(f"n{number}", "127.0.0.1" if number == 1 else f"127.0.0.{number}", **changes)


@pytest.fixture
def run(tmp_path, monkeypatch):
    """One engine over the nodes 2 and 3, one rank on node 1, the head."""
    for pool in (engine_pool, trainer_pool):
        monkeypatch.setattr(pool, "RETRY_S", 0.05)
    (tmp_path / "a1").mkdir()
    made = Run(tmp_path / "a1", *SET, nodes=(node(1, is_head=True), node(2), node(3)))
    made.launch()
    made.wait("running")
    yield made
    made.cluster.end_all()


def where(run):
    return {member.name: member.node for pool in run.state.pools.values() for member in pool.members}


def test_an_engine_that_lost_a_node_waits_for_one_and_is_made_anew_where_one_joins(run):
    run.until(lambda: where(run) == {"rank-0": "127.0.0.1", "engine-1.0": "127.0.0.2", "engine-1.1": "127.0.0.3"})
    run.cluster.lose_node("n3")
    run.until(lambda: "engine.waiting" in run.kinds)
    assert run.state.faults[0].startswith(
        "engine-1 waits for a node: no node with 0 GPUs is left for set0-inference-1;"
    )
    assert run.names("engine-") == []
    run.cluster.join_node(node(4))
    run.until(lambda: "engine.feeding" in run.kinds and not run.state.faults)
    run.until(lambda: where(run)["engine-1.1"] == "127.0.0.4")
    assert "engine.given_up" not in run.kinds


def test_nothing_is_started_on_a_node_that_does_not_answer(run):
    run.cluster.cut_node("n3")
    run.until(lambda: "engine.waiting" in run.kinds)
    run.cluster.mend_node("n3")
    run.until(lambda: "engine.feeding" in run.kinds and not run.state.faults)
    assert where(run)["engine-1.1"] == "127.0.0.3"


def test_a_pool_grows_onto_nodes_that_joined(run):
    run.cluster.join_node(node(4))
    run.cluster.join_node(node(5))
    assert run.scaled(inference="+1")["state"] == "done"
    run.until(lambda: "engine-2.1" in where(run))
    assert {where(run)[name] for name in ("engine-2.0", "engine-2.1")} == {"127.0.0.4", "127.0.0.5"}
