"""One lab of four hosts for all tests of the package, a data set on it, and runs on one host to compare with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.faults.inputs import write_dataset
from tests.lab.line import LabLine
from tests.lab.network import Lab, missing
from tests.lab.ray_nodes import RayNodes
from tests.lab.topologies import ONE_HOST, topology
from tests.real.line import Line

ROLES = {1: "training", 2: "training", 3: "inference", 4: "inference"}
"""Host -> what its node is for; the first is the cluster's head."""
SPARE = 5


def labels(roles: dict[int, str]) -> dict[int, dict[str, str]]:
    """As `RayNodes` takes them."""
    return {number: {"dspark-role": role} for number, role in roles.items()}


@pytest.fixture(scope="package")
def inputs(tmp_path_factory: pytest.TempPathFactory, tiny_target: Path) -> dict[str, Any]:
    """The topology of the lab's runs, its data set made."""
    root = tmp_path_factory.mktemp("lab")
    write_dataset(root / "data")
    return topology(tiny_target, root / "data")


@pytest.fixture(scope="package")
def nodes() -> Iterator[RayNodes]:
    """Four hosts with a Ray node each."""
    if why := missing():
        pytest.skip(f"the lab {why}")
    with Lab(len(ROLES)) as lab:
        made = RayNodes(lab, labels(ROLES))
        made.start_all()
        yield made


@pytest.fixture(scope="package")
def line(nodes: RayNodes, inputs: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> LabLine:
    """The command line on the first host."""
    return LabLine(tmp_path_factory.mktemp("line"), inputs, nodes=nodes)


@pytest.fixture(scope="package")
def one_host(inputs: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Callable[..., list[dict[str, Any]]]:
    """The steps of a run on one host, with one engine on one node and one rank: all, or the first so many.

    Each made once, and again only where more steps are asked for.
    """
    made: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    alone = Line(tmp_path_factory.mktemp("alone"), inputs)

    def run(*overrides: str, num_steps: int | None = None) -> list[dict[str, Any]]:
        name, sets = f"alone-{len(made)}", (*ONE_HOST, *overrides)
        if num_steps is None:
            if overrides not in made:
                made[overrides] = alone.finish(name, *sets)
            return made[overrides]
        key = (*overrides, "in part")
        if len(made.get(key, [])) < num_steps:
            made[key] = alone.begin_with(f"{name}-of-{num_steps}", num_steps, *sets)
        return made[key][:num_steps]

    return run


@pytest.fixture
def spare_line(inputs: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabLine]:
    """Five hosts, of which the last has no Ray node yet."""
    if why := missing():
        pytest.skip(f"the lab {why}")
    with Lab(SPARE) as lab:
        nodes = RayNodes(lab, labels({**ROLES, SPARE: "inference"}))
        for host in lab.hosts[:-1]:
            nodes.start(host)
        yield LabLine(tmp_path_factory.mktemp("spare"), inputs, nodes=nodes)
