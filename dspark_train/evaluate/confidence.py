"""The confidence head judged on one half of the prompts, with a temperature fitted on the other; kept with the export.

vLLM 0.32 reads no temperature: it takes the sigmoid of the head's output as it is. The head is one linear layer, so a
temperature is stored where vLLM uses it by dividing that layer's weights by it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dspark_train.errors import UsageError
from dspark_train.evaluate.calibration import (
    Floats,
    by_position,
    confidences,
    fit_temperature,
    overall,
    prefix_products,
)
from dspark_train.evaluate.reference import Generated
from dspark_train.evaluate.trimming import StepCost, estimate

CALIBRATION = "calibration.json"
WEIGHTS = "model.safetensors"
HEAD = ("confidence_head.proj.weight", "confidence_head.proj.bias")


def judge(generated: Sequence[Generated], cost: StepCost, loads: Sequence[int]) -> dict[str, Any] | None:
    """Calibration and what trimming would save, as JSON; None where the draft has no confidence head.

    The temperature is fitted on every other prompt; all else is said of the rest.
    """
    fitted_on, judged_on = _verifications(generated[::2]), _verifications(generated[1::2])
    if fitted_on is None or judged_on is None:
        return None
    temperature = fit_temperature(*fitted_on)
    logits, accepted = judged_on
    raw, fitted = confidences(logits), confidences(logits, temperature)
    return {
        "temperature": temperature,
        "num_fitted_on": len(fitted_on[1]),
        "num_judged_on": len(accepted),
        "ece": overall(raw, accepted).ece,
        "ece_fitted": overall(fitted, accepted).ece,
        "per_position": [each.as_json() for each in by_position(raw, accepted)],
        "per_position_fitted": [each.as_json() for each in by_position(fitted, accepted)],
        "prefix_products": [list(pair) for pair in prefix_products(raw, accepted)],
        "prefix_products_fitted": [list(pair) for pair in prefix_products(fitted, accepted)],
        "step_cost": [list(point) for point in cost.points],
        "trimming": [estimate(fitted, accepted, load, cost).as_json() for load in loads],
    }


def store(directory: Path, found: dict[str, Any], *, fold: bool) -> Path:
    """Write calibration.json into an export; fold: also divide the confidence head by the temperature, once only.

    Raises UsageError where it was folded before, for another temperature would be folded onto it.
    """
    path = directory / CALIBRATION
    before = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    if before.get("folded"):
        raise UsageError(f"{path}: a temperature is in the weights already: export the draft again to fit another")
    if fold:
        _fold(directory / WEIGHTS, float(found["temperature"]))
    path.write_text(json.dumps({**found, "folded": fold}, indent=1) + "\n", encoding="utf-8")
    return path


def _fold(weights: Path, temperature: float) -> None:
    from safetensors import safe_open
    from safetensors.torch import save_file

    if not weights.is_file():
        raise UsageError(f"{weights} does not exist: only an export in one file can be folded into")
    with safe_open(weights, framework="pt") as file:
        metadata = file.metadata()
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    tensors |= {name: tensors[name] / temperature for name in HEAD}
    beside = weights.with_suffix(".folding")
    save_file(tensors, beside, metadata=metadata)
    beside.rename(weights)


def _verifications(generated: Sequence[Generated]) -> tuple[Floats, list[int]] | None:
    logits = [row for one in generated for row in one.confidence]
    if not logits:
        return None
    return np.array(logits, dtype=np.float64), [count for one in generated for count in one.accepted]
