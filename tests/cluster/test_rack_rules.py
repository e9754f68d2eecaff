"""What is said of nodes that are not here: racks, management networks, containers, by made-up facts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dspark_train.cluster.checks import Need
from dspark_train.cluster.node_facts import Gpus, Interface, NodeFacts, Numa
from dspark_train.cluster.rack_rules import NODE_RULES, judge

NEED = Need(Path("runs"), num_nodes=3, nodes_per_engine=2, target="moonshotai/Kimi-K3")
DOMAIN = "6f1c1a52-8f3e-4e0f-9a51-0a1b2c3d4e5f.0"
RACK = NodeFacts(
    address="10.1.0.7",
    machine="aarch64",
    page_bytes=65536,
    wheels={"torch": "aarch64", "vllm": "aarch64"},
    interfaces={"enp1": Interface("10.1.0.7", 9000, 400e9), "eno1": Interface("192.168.0.7", 1500, 1e9)},
    gpus=Gpus(("NVIDIA GB300",) * 4, "580.95", "13.0", DOMAIN, "Completed", 1, "UP"),
    numa=Numa({0: 72, 1: 72}),
    rdma={"mlx5_0": "ACTIVE"},
    env={"GLOO_SOCKET_IFNAME": "enp1", "NCCL_SOCKET_IFNAME": "enp1", "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0"},
    target="96 files of weights, 1000 bytes",
)
"""A node of a GB300 rack as the recipe has it."""


def gpus(**changes: object) -> dict[str, object]:
    return {"gpus": replace(RACK.gpus, **changes)}  # type: ignore[arg-type]


def test_a_node_as_the_recipe_has_it_needs_nothing() -> None:
    findings = judge(RACK, NEED, NODE_RULES)
    assert {finding.check: finding.status for finding in findings} == {
        **dict.fromkeys(("wheels", "page size", "NVLink domain", "IMEX", "memory export", "RDMA"), "ok"),
        **dict.fromkeys(("locked memory", "NUMA", "network", "sockets", "target files"), "ok"),
    }
    assert {finding.remedy for finding in findings} == {""}


@pytest.mark.parametrize(
    ("changes", "need", "check", "status", "text"),
    [
        ({"wheels": {"vllm": "x86_64"}}, {}, "wheels", "failed", "installed are vllm for x86_64"),
        ({"page_bytes": 4096}, {}, "page size", "warning", "pages of 4 KiB, where 64 KiB"),
        (gpus(fabric="In Progress"), {}, "NVLink domain", "failed", "In Progress"),
        (gpus(num_imex_channels=0), {}, "IMEX", "failed", "no memory can be exported"),
        (gpus(imex="DEGRADED"), {}, "IMEX", "warning", "DEGRADED"),
        (gpus(imex=""), {}, "IMEX", "warning", "IMEX says nothing, 1 channels"),
        (
            {"env": {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64,expandable_segments: True"}},
            {},
            "memory export",
            "warning",
            "may not be exportable",
        ),
        ({"rdma": {}}, {"store_protocol": "rdma"}, "RDMA", "failed", "no active device is here (none at all)"),
        ({"rdma": {"mlx5_0": "DOWN"}}, {"store_protocol": "rdma"}, "RDMA", "failed", "no active device"),
        ({}, {"store_protocol": "rdma", "store_devices": "mlx5_0,mlx5_1"}, "RDMA", "failed", "no active mlx5_1"),
        ({"memlock_bytes": 8 << 20}, {}, "locked memory", "warning", "8192 KiB"),
        ({"memlock_bytes": 8 << 20}, {"store_protocol": "rdma"}, "locked memory", "failed", "8192 KiB"),
        ({"memlock_bytes": 8 << 20, "gpus": Gpus()}, {}, "locked memory", "ok", "8192 KiB"),
        ({"numa": Numa({0: 72}, 72)}, {}, "NUMA", "warning", "72 cores of the node may not be used"),
        ({"numa": Numa({0: 72, 1: 72}, 0, 4)}, {}, "NUMA", "warning", "4 NUMA nodes are memory alone"),
        ({"numa": Numa({0: 72, 1: 72}, balancing=True)}, {}, "NUMA", "warning", "numa_balancing"),
        ({"address": "192.168.0.7"}, {}, "network", "warning", "on eno1, 1 Gbit/s; enp1 has 400"),
        ({"address": "192.168.0.7"}, {}, "sockets", "failed", "192.168.0.7 is on eno1"),
        ({"env": {}}, {}, "uv hook", "warning", "RAY_ENABLE_UV_RUN_RUNTIME_ENV"),
        ({"target": "", "hub": "no answer"}, {}, "target files", "failed", "is not here, and the hub: no answer"),
        ({"target": "", "hub": "on"}, {}, "target files", "warning", "the hub answers"),
    ],
)
def test_what_differs_from_it_is_said_with_a_remedy(
    changes: dict[str, object], need: dict[str, str], check: str, status: str, text: str
) -> None:
    facts, wanted = replace(RACK, **changes), replace(NEED, **need)  # type: ignore[arg-type]
    (finding,) = [finding for finding in judge(facts, wanted, NODE_RULES) if finding.check == check]
    assert finding.status == status
    assert text in finding.text
    assert bool(finding.remedy) == (status != "ok")


def test_nothing_of_a_rack_is_said_of_a_plain_machine() -> None:
    plain = NodeFacts("10.0.0.1", wheels={"torch": "x86_64"}, interfaces={"eth0": Interface("10.0.0.1")})
    names = {finding.check for finding in judge(plain, Need(Path("runs")), NODE_RULES)}
    assert names == {"wheels", "locked memory", "network"}
