"""A run of eight steps over several Ray nodes on one machine, with the stand-in for vLLM."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.faults import inputs

NUM_STEPS = 8


def topology(target: Path, data: Path) -> dict[str, Any]:
    """One engine on a node, two ranks on the other."""
    made = inputs.topology(target, data, Path("none"))
    return made | {
        "nodes": {"inference": {"count": 1, "gpus": 0}, "training": {"count": 1, "gpus": 0}},
        "engines": made["engines"] | {"entry": inputs.STAND_IN, "env": {}, "request_timeout_s": 60},
        "trainers": {"ranks": {"start": 2, "max": 2}, "group_timeout_s": 200},
        "ledger": {"lease_s": 100},
        "supervision": {"silence_s": 120},
        "run": {"seed": 7, "max_steps": NUM_STEPS},
        "validation": {"every_steps": NUM_STEPS},
        "checkpoint": {"every_steps": NUM_STEPS, "keep": 1},
    }
