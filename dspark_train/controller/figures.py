"""The figures of a step: as a line of metrics.jsonl or validation.jsonl has them, and by their names in trackers."""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterator, Mapping
from itertools import repeat
from numbers import Real
from pathlib import Path

from dspark_train.plan.run_layout import RunLayout

Metrics = Mapping[str, float | int | str]
Line = dict[str, float | int | str | None]
COURSE_KEYS = frozenset({"epoch", "generation", "num_ranks"})
THROUGHPUT_KEYS = frozenset({"tokens", "wait_s", "step_s"})


def figures(kind: str, metrics: Mapping[str, object]) -> dict[str, float]:
    """The numbers of one line by their tags, and the throughput that follows from them."""
    found = {
        tag(kind, key): float(value) for key, value in metrics.items() if key != "step" and isinstance(value, Real)
    }
    step_s, tokens = metrics.get("step_s"), metrics.get("tokens")
    if kind == "train" and isinstance(step_s, Real) and isinstance(tokens, Real) and float(step_s) > 0:
        found["throughput/tokens_per_s"] = float(tokens) / float(step_s)
    return found


def tag(kind: str, key: str) -> str:
    """The name of a figure in TensorBoard and trackers: train/loss, val/loss, lr, throughput/step_s, run/num_ranks."""
    if kind == "validate":
        return f"val/{key}"
    if key == "lr" or key.startswith(("lr_", "lr/")):
        return key
    if key in COURSE_KEYS:
        return f"run/{key}"
    return f"throughput/{key}" if key in THROUGHPUT_KEYS else f"train/{key}"


def read_lines(path: Path) -> Iterator[Line]:
    """The whole lines of a file, in order; none where it is missing."""
    try:
        with path.open("rb") as file:
            yield from (line for line in map(parse_line, file) if line is not None)
    except FileNotFoundError:
        return


def parse_line(line: bytes) -> Line | None:
    """A line, or None where it is not a whole JSON object with a step."""
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) and isinstance(found.get("step"), int) else None


def step_of(line: Line) -> int:
    """The step that a line is of."""
    return int(str(line["step"]))


def on_disk(layout: RunLayout) -> Iterator[tuple[str, int, dict[str, float]]]:
    """Kind, step and figures of all that a run has recorded: a validation round after the step that it follows."""
    kinds = (("train", layout.metrics), ("validate", layout.validation))
    files = [zip(repeat(kind), read_lines(path), strict=False) for kind, path in kinds]
    for kind, line in heapq.merge(*files, key=lambda item: (step_of(item[1]), item[0])):
        yield kind, step_of(line), figures(kind, line)
