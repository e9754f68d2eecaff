"""Manifests and Dockerfiles, as far as they can be held to anything without a cluster or a build."""

from __future__ import annotations

import importlib.metadata
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from dspark_train.cli.app import run
from dspark_train.cluster.software_checks import SYSTEM_PACKAGES
from dspark_train.topology.load import load
from tests.launch.fields import wrong

ROOT = Path(__file__).parents[2]
MANIFESTS = sorted((ROOT / "launch" / "kubernetes").glob("*.yaml"))
DOCKERFILES = sorted((ROOT / "launch" / "containers").glob("Dockerfile.*"))


def documents(path: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(path.read_text(encoding="utf-8")))


def job(path: Path) -> dict[str, Any]:
    (spec,) = [document["spec"] for document in documents(path) if document["kind"] == "RayJob"]
    return spec  # type: ignore[no-any-return]


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.stem)
def test_a_manifest_has_only_fields_that_there_are(path: Path) -> None:
    for document in documents(path):
        assert list(wrong(document, document["kind"], document["kind"])) == []


def test_a_field_that_there_is_not_is_found() -> None:
    broken = {"kind": "RayJob", "spec": {"rayClusterSpec": {"workerGroupSpecs": [{"replica": 1}]}, "entrypoint": []}}
    assert list(wrong(broken, "RayJob", "RayJob")) == [
        "RayJob.spec.rayClusterSpec.workerGroupSpecs[0].replica is no field of WorkerGroupSpec",
        "RayJob.spec.entrypoint is no plain value",
    ]


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.stem)
def test_a_job_runs_the_ray_that_is_pinned_and_every_pod_starts_with_the_shared_environment(path: Path) -> None:
    cluster = job(path)["rayClusterSpec"]
    assert cluster["rayVersion"] == importlib.metadata.version("ray")
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    for template in (group["template"] for group in groups):
        (container,) = template["spec"]["containers"]
        assert container["args"][0].startswith("cd /opt/dspark-train && . launch/env.sh && ")
        assert template["metadata"]["annotations"] == {"ray.io/overwrite-container-cmd": "true"}
        assert {mount["name"] for mount in container["volumeMounts"]} == {
            volume["name"] for volume in template["spec"]["volumes"]
        }


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.stem)
def test_what_a_job_launches_is_a_command_line_that_there_is(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shell = shlex.split(job(path)["entrypoint"])
    command = shlex.split(shell[2].rpartition("&& dspark-train ")[2])
    options = {word for word in command if word.startswith("--")}
    assert run([command[0], "--help"]) == 0
    assert options <= set(re.findall(r"--[a-z-]+", capsys.readouterr().out))


def test_the_racks_job_has_the_nodes_and_gpus_of_its_topology() -> None:
    topology = load(ROOT / "topologies" / "gb300-3node.yaml", ())
    assert topology.nodes.inference is not None
    assert topology.nodes.training is not None
    path = ROOT / "launch" / "kubernetes" / "gb300-3node.yaml"
    (group,) = job(path)["rayClusterSpec"]["workerGroupSpecs"]
    num_nodes = topology.sets * (topology.nodes.inference.count + topology.nodes.training.count)
    assert group["replicas"] == num_nodes == documents(path)[0]["spec"]["numNodes"]
    limits = group["template"]["spec"]["containers"][0]["resources"]["limits"]
    assert int(limits["nvidia.com/gpu"]) == topology.nodes.inference.gpus == topology.nodes.training.gpus


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.suffix[1:])
def test_an_image_has_what_mooncake_links_to_and_copies_what_is_there(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    for package in SYSTEM_PACKAGES.split():
        assert re.search(rf"\b{package}(t64)?\b", text)  # Ubuntu 24.04 calls some by another name
    for line in re.findall(r"^COPY (.*)$", text, re.MULTILINE):
        assert [name for name in line.split()[:-1] if not (ROOT / name).exists()] == []
