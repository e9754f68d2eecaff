"""The package, the Makefile, the licence and CI agree with each other."""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

import dspark_train
from dspark_train.cli.app import COMMANDS
from dspark_train.cluster.software_checks import SYSTEM_PACKAGES

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    tree: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
    return tree


def test_the_version_is_said_once(project: dict[str, Any]) -> None:
    assert project["project"]["version"] == dspark_train.__version__


def test_the_licence_is_apache_2(project: dict[str, Any]) -> None:
    assert project["project"]["license"] == "Apache-2.0"
    text = (ROOT / "LICENSE").read_text()
    assert "Apache License" in text
    assert "END OF TERMS AND CONDITIONS" in text


def test_both_kinds_of_installation_are_of_the_same_versions(project: dict[str, Any]) -> None:
    def versions(extra: str) -> list[str]:
        pins = [Requirement(text) for text in project["project"]["optional-dependencies"][extra]]
        assert [pin.name.split("-")[0] for pin in pins] == ["vllm", "mooncake"]
        return [str(pin.specifier) for pin in pins]

    assert versions("cpu") == versions("gpu")
    assert all(text.startswith("==") for text in versions("cpu"))


def test_the_makefile_runs_commands_that_exist_and_names_the_libraries_that_doctor_names() -> None:
    makefile = (ROOT / "Makefile").read_text()
    used = set(re.findall(r"\$\(DSPARK\) (\w+)", makefile))
    assert {"prepare", "launch", "export"} <= used <= set(COMMANDS)
    assert f"LIBS    := {SYSTEM_PACKAGES}\n" in makefile


def test_ci_runs_the_test_command_of_the_readme() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert script.read_text().splitlines()[-1] == "make test"
    readme = (ROOT / "README.md").read_text()
    assert re.search(r"^make test\b", readme, re.MULTILINE)
    assert re.search(r"^make demo\b", readme, re.MULTILINE)


def test_the_types_travel_with_the_package(project: dict[str, Any]) -> None:
    assert "py.typed" in project["tool"]["setuptools"]["package-data"]["dspark_train"]
    assert (ROOT / "dspark_train" / "py.typed").is_file()
