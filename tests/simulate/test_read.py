"""Scenario files: those that are shipped, and broken ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from dspark_train.errors import FileProblems
from dspark_train.simulate.read import read

SHIPPED = sorted((Path(__file__).parents[2] / "scenarios").glob("*.yaml"))
GOOD = "name: x\nengine: {samples_per_s: 1}\nrank: {samples_per_s: 1}\n"


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_each_shipped_scenario_is_right(path: Path) -> None:
    assert read(path).text


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (GOOD + "huors: 3\n", "FILE:4: huors is not a known key: did you mean hours?"),
        (GOOD + "hours: -3\n", "FILE:4: hours (-3) is not above 0: use more than 0"),
        (GOOD + "changes: [{at_h: 1, engine: 2}]\n", "FILE:4: changes[0].engine is not a known key"),
        (GOOD + "flow: water\n", 'FILE:4: flow ("water") is not a known value: use one of fluid, ledger'),
        ("name: x\nrank: {samples_per_s: 1}\n", "FILE: engine is missing: add it (What an engine can do)"),
        ("", "FILE: is empty"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(text)
    with pytest.raises(FileProblems) as caught:
        read(path)
    assert str(caught.value).replace(str(path), "FILE").startswith(complaint)


def test_a_missing_file_is_said_to_be_missing(tmp_path: Path) -> None:
    with pytest.raises(FileProblems, match="cannot be read"):
        read(tmp_path / "nowhere.yaml")
