"""What a run through files, and one from extracted hidden states, is made of."""

from __future__ import annotations

import json

from dspark_train.plan.build import build_plan
from dspark_train.plan.spec import Plan

from .conftest import Resolve

DISK = ("store.protocol=disk", "store.path=/scratch/")


def argv(plan: Plan, name: str) -> tuple[str, ...]:
    return plan.process(name).argv


def test_through_files_engines_get_the_directory_and_nobody_a_master_of_mooncakes(shipped: Resolve) -> None:
    plan = build_plan(shipped("quickstart", *DISK))
    assert argv(plan, "master") == ("actor", "dspark_train.store.disk_master:DiskMaster")
    assert plan.process("master").ports == {}
    engine = argv(plan, "engine-1.0")
    config = json.loads(engine[engine.index("--kv-transfer-config") + 1])
    assert config["kv_connector"] == "DSparkDiskConnector"
    assert config["kv_connector_extra_config"]["disk"] == {"root": "/scratch/dspark-store"}
    assert "{port:master" not in " ".join(engine)


def test_from_extracted_hidden_states_no_vllm_is_started_and_no_gpu_taken(shipped: Resolve) -> None:
    plan = build_plan(shipped("single-node", *DISK, "data.hidden_states=/hidden"))
    engines = [process for process in plan.processes if process.kind == "engine"]
    assert {process.argv for process in engines} == {("actor", "dspark_train.engine.archive:Archive")}
    assert {process.num_gpus for process in engines} == {0}


def test_several_nodes_are_told_that_they_must_share_the_directory(shipped: Resolve) -> None:
    plan = build_plan(shipped("gb300-3node", *DISK))
    assert "store.path (/scratch/) must be one directory that all 3 nodes see" in plan.warnings
