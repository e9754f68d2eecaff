"""What the lab's runs are: the fault scenarios' data and draft, on nodes of two kinds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.faults import inputs

ONE_HOST = (
    "nodes={shared: {count: 1, gpus: 0}}",
    "engines.nodes_per_engine=1",
    "engines.tensor_parallel=1",
    "engines.count.start=1",
    "trainers.ranks.start=1",
)
"""Overrides that bring such a run to one host."""
LONG = ("run.max_steps=400", "validation.every_steps=400")
"""Of a run that is ended once what was to be seen was seen; one reference for all of them."""
SINGLE_NODE_ENGINES = ("engines.nodes_per_engine=1", "engines.tensor_parallel=1", "engines.count.start=2")
REAL_VLLM = (
    "engines.entry=dspark_train.engine.vllm_entry",
    "engines.request_timeout_s=120",
    "ledger.lease_s=150",
    "engines.start_timeout_s=300",
)


def topology(target: Path, data: Path, num_steps: int = 24) -> dict[str, Any]:
    """One set: an engine over two nodes, and two nodes with a rank each. The engine is the stand-in.

    A cut link is noticed within seconds, by who is cut off and by who is left.
    """
    made = inputs.topology(target, data, lies=Path("/nonexistent"))
    engines = {**made["engines"], "entry": inputs.STAND_IN, "env": {}, "count": {"start": 1, "max": 3}}
    return {
        **made,
        "nodes": {"inference": {"count": 2, "gpus": 0}, "training": {"count": 2, "gpus": 0}},
        "engines": {**engines, "nodes_per_engine": 2, "tensor_parallel": 2},
        "trainers": {"ranks": {"start": 2, "max": 4}, "group_timeout_s": 60},
        "supervision": {"silence_s": 10, "fence_s": 45},
        "run": {"seed": 7, "max_steps": num_steps},
        "validation": {"every_steps": 32},
        "checkpoint": {"every_steps": 8, "keep": 3},
    }
