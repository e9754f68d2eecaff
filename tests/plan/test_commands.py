"""What each process is started with, against the contract with vLLM, Mooncake and the actors."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dspark_train.errors import UsageError
from dspark_train.plan.build import build_plan
from dspark_train.plan.commands import engine_processes, rank_process
from dspark_train.plan.placement import planned_nodes
from dspark_train.plan.spec import ProcessSpec, bind_process
from dspark_train.plan.vllm_argv import vllm_flags

from .conftest import Resolve


def value(spec: ProcessSpec, flag: str) -> str:
    """What follows ``flag``, which must be there once."""
    assert spec.argv.count(flag) == 1
    return spec.argv[spec.argv.index(flag) + 1]


def test_the_quickstart_starts_six_processes_on_one_node(shipped: Resolve) -> None:
    plan = build_plan(shipped("quickstart"))
    names = ["controller", "ledger", "master", "engine-1.0", "rank-0", "rank-1"]
    assert [process.name for process in plan.processes] == names
    assert {process.node for process in plan.processes} == {"set0-shared-0"}
    assert sum(process.num_gpus for process in plan.processes) == 0


def test_an_engine_on_cpu_is_started_as_it_was_tried(shipped: Resolve) -> None:
    (engine,) = engine_processes(*_with_nodes(shipped("quickstart")), 1)
    assert engine.argv[:5] == ("python", "-m", "dspark_train.engine.vllm_entry", "serve", "/models/target")
    assert value(engine, "--host") == "{host:set0-shared-0}"
    assert value(engine, "--port") == "{port:engine-1.0.http}"
    assert value(engine, "--served-model-name") == "quickstart/target"
    assert value(engine, "--dtype") == "float32"
    assert value(engine, "--max-model-len") == "513"
    assert value(engine, "--tensor-parallel-size") == "1"
    assert "--enforce-eager" in engine.argv
    assert not {"--nnodes", "--headless", "--trust-remote-code"} & set(engine.argv)
    assert engine.ports == {"http": None}
    assert engine.env == {
        "VLLM_CPU_KVCACHE_SPACE": "2",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "DSPARK_VLLM_PAUSE_S": "0.0005",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "VLLM_LOGGING_LEVEL": "INFO",
        "VLLM_NO_USAGE_STATS": "1",
        "PYTHONUNBUFFERED": "1",
    }


def test_another_entry_gets_the_same_command_line(shipped: Resolve) -> None:
    (engine,) = engine_processes(*_with_nodes(shipped("quickstart")), 1)
    entry = "engines.entry=dspark_train.engine.stand_in"
    (stand_in,) = engine_processes(*_with_nodes(shipped("quickstart", entry)), 1)
    assert stand_in.argv == (*engine.argv[:2], "dspark_train.engine.stand_in", *engine.argv[3:])


def test_an_engine_extracts_the_layers_and_the_last_one_through_our_connector(shipped: Resolve) -> None:
    (engine,) = engine_processes(*_with_nodes(shipped("quickstart", "store.client_buffer_mib=32")), 1)
    assert json.loads(value(engine, "--speculative-config")) == {
        "method": "extract_hidden_states",
        "num_speculative_tokens": 1,
        "draft_model_config": {"hf_config": {"eagle_aux_hidden_state_layer_ids": [2, 15, 27, 30]}},
    }
    assert json.loads(value(engine, "--kv-transfer-config")) == {
        "kv_connector": "DSparkConnector",
        "kv_role": "kv_producer",
        "kv_connector_module_path": "dspark_train.engine.connector",
        "kv_connector_extra_config": {
            "mooncake": {
                "local_hostname": "{host:set0-shared-0}",
                "metadata_server": "P2PHANDSHAKE",
                "master_server_address": "{host:set0-shared-0}:{port:master.rpc}",
                "global_segment_size": 0,
                "local_buffer_size": 32 * 2**20,
                "protocol": "tcp",
                "device_name": "",
                "num_writer_threads": 1,
            }
        },
    }


def test_an_engine_over_two_nodes_has_a_leader_and_a_headless_follower(shipped: Resolve) -> None:
    leader, follower = engine_processes(*_with_nodes(shipped("gb300-3node")), 1)
    assert [leader.name, follower.name] == ["engine-1.0", "engine-1.1"]
    assert [leader.node, follower.node] == ["set0-inference-0", "set0-inference-1"]
    assert (leader.num_gpus, follower.num_gpus) == (4, 4)
    assert (leader.ports, follower.ports) == ({"http": None, "dist": None}, {})
    for place, spec in enumerate((leader, follower)):
        assert value(spec, "--nnodes") == "2"
        assert value(spec, "--node-rank") == str(place)
        assert value(spec, "--master-addr") == "{host:set0-inference-0}"
        assert value(spec, "--master-port") == "{port:engine-1.0.dist}"
        assert value(spec, "--tensor-parallel-size") == "8"
        assert value(spec, "--dtype") == "bfloat16"
        assert value(spec, "--max-model-len") == "8193"
        assert value(spec, "--max-num-batched-tokens") == "32768"
        assert {"--trust-remote-code", "--enable-expert-parallel"} <= set(spec.argv)
        assert spec.env["VLLM_HOST_IP"] == f"{{host:{spec.node}}}"
        assert spec.env["GLOO_SOCKET_IFNAME"] == "{interface}"
        mooncake = _mooncake(spec)
        assert mooncake["local_hostname"] == f"{{host:{spec.node}}}"
        assert mooncake["master_server_address"] == "{host:set0-training-0}:{port:master.rpc}"
    assert "--headless" in follower.argv
    assert not {"--headless"} & set(leader.argv)
    assert not {"--host", "--port"} & set(follower.argv)
    assert "--enforce-eager" not in leader.argv
    assert "OMP_NUM_THREADS" not in leader.env


def test_a_layer_that_is_not_known_is_left_open_visibly(shipped: Resolve) -> None:
    plan = build_plan(shipped("gb300-3node"))
    ids = json.loads(value(plan.process("engine-1.0"), "--speculative-config"))["draft_model_config"]["hf_config"]
    assert ids == {"eagle_aux_hidden_state_layer_ids": [24, 48, 72, 88, 92, "UNRESOLVED"]}
    assert [text.split(" is not known")[0] for text in plan.unresolved] == ["the target's number of layers"]
    assert set(plan.unresolved) <= set(plan.warnings)
    assert build_plan(shipped("quickstart")).unresolved == ()


def test_the_master_keeps_what_it_has_and_shows_its_admin_server_to_nobody(shipped: Resolve) -> None:
    master = build_plan(shipped("gb300-3node")).process("master")
    assert master.node == "set0-training-0"
    assert master.argv == (
        "mooncake_master",
        "--rpc_address={host:set0-training-0}",
        "--rpc_port={port:master.rpc}",
        "--metrics_host=127.0.0.1",
        "--metrics_port={port:master.metrics}",
        "--client_ttl=60",
        "--eviction_high_watermark_ratio=1.0",
        "--eviction_ratio=0.0",
        "--allow_evict_soft_pinned_objects=false",
        "--logtostderr=true",
    )
    assert master.ports == {"rpc": None, "metrics": None}


def test_actors_name_their_class_and_the_controller_reserves_its_port(shipped: Resolve) -> None:
    plan = build_plan(shipped("quickstart", "trainers.cpu_threads=3"))
    assert plan.process("rank-1").argv == ("actor", "dspark_train.trainer.rank:Rank")
    assert plan.process("rank-1").env == {"OMP_NUM_THREADS": "3", "HF_HUB_OFFLINE": "1"}
    assert plan.process("ledger").argv == ("actor", "dspark_train.controller.ledger_service:LedgerService")
    assert plan.process("controller").ports == {"api": None}
    assert (plan.process("rank-0").ports, plan.process("ledger").ports) == ({}, {})


def test_own_environment_and_options_reach_the_engine(shipped: Resolve) -> None:
    overrides = ["engines.env={A: b, VLLM_LOGGING_LEVEL: DEBUG}", "engines.vllm={enforce_eager: false, seed: 3}"]
    (engine,) = engine_processes(*_with_nodes(shipped("quickstart", *overrides)), 1)
    assert (engine.env["A"], engine.env["VLLM_LOGGING_LEVEL"]) == ("b", "DEBUG")
    assert "--no-enforce-eager" in engine.argv
    assert value(engine, "--seed") == "3"


@pytest.mark.parametrize(
    ("options", "flags"),
    [
        ({"max_num_seqs": 64}, ["--max-num-seqs", "64"]),
        ({"enable_expert_parallel": True}, ["--enable-expert-parallel"]),
        ({"enable_prefix_caching": False}, ["--no-enable-prefix-caching"]),
        ({"hf_overrides": {"a": {"b": 1}}}, ["--hf-overrides", '{"a":{"b":1}}']),
        ({"cudagraph_capture_sizes": [1, 2]}, ["--cudagraph-capture-sizes", "1", "2"]),
        ({"quantization": None}, []),
        (
            {"gpu_memory_utilization": 0.85, "load_format": "auto"},
            ["--gpu-memory-utilization", "0.85", "--load-format", "auto"],
        ),
    ],
)
def test_vllm_options_become_flags(options: dict[str, Any], flags: list[str]) -> None:
    assert vllm_flags(options) == flags


def test_four_sets_hold_four_engines_and_sixteen_ranks_evenly(shipped: Resolve) -> None:
    plan = build_plan(shipped("gb300-12node"))
    assert len(plan.nodes) == 12
    assert plan.process("engine-3.1").node == "set2-inference-1"
    ranks = [process.node for process in plan.processes if process.kind == "rank"]
    assert {node: ranks.count(node) for node in ranks} == {f"set{number}-training-0": 4 for number in range(4)}
    assert all(process.num_gpus == 1 for process in plan.processes if process.kind == "rank")


def test_engines_and_ranks_share_nodes_without_sharing_gpus(shipped: Resolve) -> None:
    overrides = ["nodes.shared.count=2", "engines.tensor_parallel=2", "engines.count={start: 5, max: 5}"]
    plan = build_plan(shipped("single-node", *overrides, "trainers.ranks={start: 6, max: 6}"))
    for node in plan.nodes:
        assert sum(process.num_gpus for process in plan.processes if process.node == node.name) == node.num_gpus == 8


def test_cpu_nodes_are_filled_evenly(shipped: Resolve) -> None:
    resolved = shipped("quickstart", "nodes.shared.count=3")
    plan = build_plan(resolved)
    assert [p.node for p in plan.processes if p.kind in ("engine", "rank")] == [f"set0-shared-{n}" for n in range(3)]


def test_an_engine_or_a_rank_beyond_the_gpus_has_no_node(shipped: Resolve) -> None:
    resolved, nodes = _with_nodes(shipped("gb300-3node"))
    with pytest.raises(UsageError, match=r"^engine-2 has no node: 3 nodes hold 1 engines: add nodes or sets$"):
        engine_processes(resolved, nodes, 2)
    with pytest.raises(UsageError, match=r"^rank-4 has no GPU: those of 3 nodes are taken: add nodes or sets$"):
        rank_process(resolved, nodes, 4)


def test_every_placeholder_of_a_plan_is_filled_by_its_hosts_and_ports(shipped: Resolve) -> None:
    plan = build_plan(shipped("gb300-12node"))
    hosts = {node.name: f"10.0.0.{number}" for number, node in enumerate(plan.nodes)}
    names = [f"{process.name}.{port}" for process in plan.processes for port in process.ports]
    ports = {name: 20000 + number for number, name in enumerate(names)}
    for process in plan.processes:
        bound = bind_process(process, hosts=hosts, ports=ports, run="a1", log="logs/x.log", interface="eth0")
        text = " ".join([*bound.argv, *bound.env.values()])
        assert not any(mark in text for mark in ("{host", "{port", "{run", "{log", "{interface"))
        assert None not in bound.ports.values()
    bound = bind_process(plan.process("engine-2.1"), hosts=hosts, ports=ports, run="a1", log="x", interface="eth0")
    assert value(bound, "--master-addr") == hosts["set1-inference-0"]
    assert value(bound, "--master-port") == str(ports["engine-2.0.dist"])
    assert _mooncake(bound)["local_hostname"] == hosts["set1-inference-1"]
    assert bound.env["GLOO_SOCKET_IFNAME"] == "eth0"


@pytest.mark.engine
def test_vllm_itself_understands_the_argv(shipped: Resolve) -> None:
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    plan = build_plan(shipped("gb300-12node", "target.shape.num_layers=93"))
    hosts = {node.name: "127.0.0.1" for node in plan.nodes}
    ports = {f"{p.name}.{port}": 20000 for p in plan.processes for port in p.ports}
    for process in plan.processes:
        if process.kind == "engine":
            bound = bind_process(process, hosts=hosts, ports=ports, run="a", log="x", interface="lo")
            parsed = make_arg_parser(FlexibleArgumentParser()).parse_args(list(bound.argv[4:]))
            assert (parsed.model_tag, parsed.nnodes, parsed.headless) == (
                "moonshotai/Kimi-K3",
                2,
                process.name.endswith(".1"),
            )
            assert parsed.kv_transfer_config.kv_connector == "DSparkConnector"


def _with_nodes(resolved: Any) -> tuple[Any, Any]:
    return resolved, planned_nodes(resolved.topology)


def _mooncake(spec: ProcessSpec) -> dict[str, Any]:
    config = json.loads(value(spec, "--kv-transfer-config"))
    mooncake: dict[str, Any] = config["kv_connector_extra_config"]["mooncake"]
    return mooncake
