"""A run in Weights & Biases. Without WANDB_API_KEY, a login or WANDB_MODE it is offline: files in the run's directory.

`wandb sync RUN/wandb/offline-*` sends those later.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from dspark_train.plan.run_layout import RunLayout

PROJECT = "dspark-train"
STEP = "step"


class WandbTracker:
    """See `trackers.Tracker`."""

    def __init__(self, run: Any) -> None:
        self._run = run

    def log(self, step: int, values: Mapping[str, float]) -> None:
        # Its own step only grows, and a resumed run goes back to its checkpoint: the step is a figure like others.
        self._run.log({**values, STEP: step})

    def close(self) -> None:
        self._run.finish()


def open_tracker(layout: RunLayout, settings: Mapping[str, object]) -> WandbTracker:
    """The run of that name, taken up again where there is one."""
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # it would call home even when it is offline
    import wandb

    run = wandb.init(
        project=os.environ.get("WANDB_PROJECT") or PROJECT,
        name=layout.name,
        id=layout.name,
        resume="allow",
        dir=str(layout.root),
        config=dict(settings),
        mode=_mode(),
        settings=wandb.Settings(console="off", disable_git=True),
    )
    run.define_metric("*", step_metric=STEP)
    return WandbTracker(run)


def _mode() -> Any:
    """What WANDB_MODE says; else online where it knows who is asking: it would wait for a login at a terminal."""
    import wandb

    if os.environ.get("WANDB_MODE"):
        return None
    return "online" if wandb.api.api_key else "offline"
