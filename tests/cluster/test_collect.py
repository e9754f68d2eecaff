"""Facts from what programs and the kernel say."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import pytest

from dspark_train.cluster.collect import collect, cores_of, numa, parse_gpus, target_files

SMI = """
Driver Version                            : 580.95.05
CUDA Version                              : 13.0

Attached GPUs                             : 2
GPU 00000008:01:00.0
    Product Name                          : NVIDIA GB300
    Fabric
        State                             : Completed
        Status                            : Success
        CliqueId                          : 32766
        ClusterUUID                       : {uuid}
        Health
            Bandwidth                     : Full
GPU 00000009:01:00.0
    Product Name                          : NVIDIA GB300
    Fabric
        State                             : Completed
        CliqueId                          : 32766
        ClusterUUID                       : {uuid}
"""
UUID = "6f1c1a52-8f3e-4e0f-9a51-0a1b2c3d4e5f"


def test_a_racks_nvlink_domain_is_read_from_nvidia_smi() -> None:
    gpus = parse_gpus(SMI.format(uuid=UUID), num_imex_channels=1, imex="UP")
    assert (gpus.names, gpus.driver, gpus.cuda) == (("NVIDIA GB300",) * 2, "580.95.05", "13.0")
    assert (gpus.nvlink_domain, gpus.fabric, gpus.num_imex_channels) == (f"{UUID}.32766", "Completed", 1)


@pytest.mark.parametrize("uuid", ["N/A", "00000000-0000-0000-0000-000000000000"])
def test_gpus_without_a_fabric_are_in_no_domain(uuid: str) -> None:
    assert (parse_gpus(SMI.format(uuid=uuid)).nvlink_domain, parse_gpus("").names) == ("", ())


@pytest.mark.parametrize(("text", "cores"), [("0-3,8", {0, 1, 2, 3, 8}), ("5", {5}), ("\n", set())])
def test_a_list_of_cores_is_read(text: str, cores: set[int]) -> None:
    assert cores_of(text) == cores


def test_numa_nodes_without_cores_are_memory_alone(tmp_path: Path) -> None:
    for number, cores in enumerate(("0-71", "72-143", "", "")):
        (tmp_path / f"node{number}").mkdir()
        (tmp_path / f"node{number}" / "cpulist").write_text(f"{cores}\n")
    found = numa(tmp_path, allowed=set(range(72)))
    assert (dict(found.cores), found.num_cores_elsewhere, found.num_memory_only) == ({0: 72}, 72, 2)


def test_a_model_is_found_in_a_directory_and_in_the_hubs_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    snapshot = tmp_path / "models--a--b" / "snapshots" / "1"
    snapshot.mkdir(parents=True)
    assert target_files("a/b") == target_files(str(snapshot)) == ""
    (snapshot / "config.json").write_text("{}")
    (snapshot / "model.safetensors").write_bytes(b"12345")
    assert target_files("a/b") == target_files(str(snapshot)) == "1 files of weights, 5 bytes"


def test_this_machine_has_facts() -> None:
    facts = collect("127.0.0.1")
    assert (facts.machine, facts.page_bytes) == (platform.machine(), os.sysconf("SC_PAGE_SIZE"))
    assert facts.versions["ray"] == "2.60.0"
    assert facts.interface() == "lo"
    assert set(facts.wheels.values()) <= {platform.machine()}
    assert (facts.hub, facts.sees_runs) == ("not asked", None)
