"""The whole line's inputs: the tiny target, and a data set prepared for it by the real command."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.real.line import Line

EXAMPLES = Path(__file__).parents[2] / "examples" / "prompts.jsonl"
NUM_PROMPTS = 40


def topology(target: Path, data: Path) -> dict[str, Any]:
    """48 steps of a small draft for the tiny target, on one machine without a GPU."""
    train = {"num_layers": 1, "block_size": 4, "max_anchors": 16, "optimizer": "adamw", "lr": 0.005}
    return {
        "name": "tiny",
        "target": {"model": str(target), "layers": [1, 2]},
        "draft": {"algorithm": "dspark", "train": train},
        "data": {"path": str(data), "seq_len": 256, "step_packs": 4},
        "nodes": {"shared": {"count": 1, "gpus": 0}},
        "engines": {"count": {"start": 1, "max": 2}, "max_in_flight": 8, "max_in_flight_tokens": 2048},
        # Patient: on a machine that stalls for a minute the tests should be slow, not red.
        "trainers": {"ranks": {"start": 2, "max": 4}, "group_timeout_s": 400},
        "supervision": {"silence_s": 300},
        "store": {"segment_gib": 0.125},
        "run": {"seed": 7, "max_steps": 48},
        "validation": {"every_steps": 24},
        "checkpoint": {"every_steps": 8, "keep": 3},
    }


@pytest.fixture(scope="package")
def line(tmp_path_factory: pytest.TempPathFactory, tiny_target: Path) -> Iterator[Line]:
    """A line with its data set made; ends every process that a failed test left."""
    root = tmp_path_factory.mktemp("line")
    made = Line(root, topology(tiny_target, root / "data"))
    conversations = root / "conversations.jsonl"
    conversations.write_text("\n".join(EXAMPLES.read_text(encoding="utf-8").splitlines()[:NUM_PROMPTS]) + "\n")
    prepared = made.run("prepare", "--topology", str(made.topology_file), "--data", str(conversations))
    assert prepared.returncode == 0, prepared.stdout + prepared.stderr
    yield made
    made.end_all()
