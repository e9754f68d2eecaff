"""The same run through Mooncake, through files, and from files extracted before: the same steps to the last bit.

Hidden states come from the stand-in, whose bytes never differ, so that whatever differs is the mode's.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.faults.inputs import STAND_IN, topology, write_dataset
from tests.real.line import Line

pytestmark = [pytest.mark.real, pytest.mark.timeout(1200)]
NUM_STEPS = 12


@pytest.fixture(scope="module")
def line(tmp_path_factory: pytest.TempPathFactory, tiny_target: Path) -> Iterator[Line]:
    root = tmp_path_factory.mktemp("modes")
    write_dataset(root / "data")
    sections = topology(tiny_target, root / "data", root / "lies.json")
    sections["engines"] |= {"entry": STAND_IN, "env": {}}
    sections |= {"run": {"seed": 7, "max_steps": NUM_STEPS}, "validation": {"every_steps": 6}}
    made = Line(root, sections)
    yield made
    made.end_all()


@pytest.fixture(scope="module")
def disk(line: Line) -> tuple[str, ...]:
    """What makes a run one through files."""
    return ("store.protocol=disk", f"store.path={line.root / 'scratch'}")


@pytest.fixture(scope="module")
def offline(line: Line, disk: tuple[str, ...]) -> tuple[str, ...]:
    """What makes a run one from files that are there."""
    return (*disk, f"data.hidden_states={line.root / 'hidden-states'}")


@pytest.fixture(scope="module")
def archive(line: Line, offline: tuple[str, ...]) -> Path:
    """The hidden states of every sample, extracted once."""
    told = extract(line, offline)
    assert told["num_extracted"] == told["num_samples"] > 0
    assert told["failed"] == {}
    return line.root / "hidden-states"


@pytest.fixture(scope="module")
def online(line: Line) -> list[dict[str, Any]]:
    return line.finish("online")


def extract(line: Line, overrides: tuple[str, ...]) -> dict[str, Any]:
    sets = [part for value in overrides for part in ("--set", value)]
    done = line.run("extract", "--topology", str(line.topology_file), "--json", *sets)
    assert done.returncode == 0, done.stdout + done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def trained(steps: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """What a step was, and what came of it."""
    return [(step["step"], step["data_hash"], step["loss"], step["accept_len"], step["tokens"]) for step in steps]


def rounds(line: Line, run: str) -> list[tuple[int, float]]:
    texts = (line.root / "runs" / run / "validation.jsonl").read_text(encoding="utf-8").splitlines()
    return [(entry["step"], entry["loss"]) for entry in map(json.loads, texts)]


def leftovers(line: Line) -> list[Path]:
    return [path for path in (line.root / "scratch").rglob("*") if not path.is_dir()]


def test_through_files_it_trains_the_same_and_leaves_none_behind(
    line: Line, disk: tuple[str, ...], online: list[dict[str, Any]]
) -> None:
    assert trained(line.finish("disk", *disk)) == trained(online)
    assert rounds(line, "disk") == rounds(line, "online")
    assert leftovers(line) == []
    assert line.left() == []


def test_before_anything_was_extracted_it_says_how(line: Line, offline: tuple[str, ...]) -> None:
    refused = line.launch("too-early", *offline)
    assert refused.returncode == 2
    assert "extract them: dspark-train extract" in refused.stderr


def test_from_files_extracted_once_it_trains_the_same_as_often_as_one_likes(
    line: Line, offline: tuple[str, ...], archive: Path, online: list[dict[str, Any]]
) -> None:
    before = {path: path.stat().st_mtime_ns for path in archive.glob("hs_*")}
    for run in ("offline-1", "offline-2"):
        assert trained(line.finish(run, *offline)) == trained(online)
        assert rounds(line, run) == rounds(line, "online")
    assert {path: path.stat().st_mtime_ns for path in archive.glob("hs_*")} == before
    assert leftovers(line) == []
    assert line.left() == []
    assert extract(line, offline)["num_extracted"] == 0


@pytest.mark.usefixtures("archive")
def test_from_files_of_other_layers_it_is_refused(line: Line, offline: tuple[str, ...]) -> None:
    refused = line.launch("other-layers", *offline, "target.layers=[1, 3]")
    assert refused.returncode == 2
    assert "layer_ids is (1, 2, 4), not (1, 3, 4)" in refused.stderr
