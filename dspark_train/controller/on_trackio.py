"""A run in trackio: in TRACKIO_DIR, else in the run's directory; TRACKIO_SPACE_ID sends it to a Space as well.

`TRACKIO_DIR=RUN/trackio trackio show` shows it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from dspark_train.plan.run_layout import RunLayout

PROJECT = "dspark-train"


class TrackioTracker:
    """See `trackers.Tracker`."""

    def __init__(self, run: Any) -> None:
        self._run = run

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        self._run.finish()


def open_tracker(layout: RunLayout, settings: Mapping[str, object]) -> TrackioTracker:
    """The run of that name, taken up again where there is one."""
    os.environ.setdefault("TRACKIO_DIR", str(layout.root / "trackio"))  # read when it is imported
    import trackio

    run = trackio.init(
        project=os.environ.get("TRACKIO_PROJECT") or PROJECT,
        name=layout.name,
        config=dict(settings),
        resume="allow",
        space_id=os.environ.get("TRACKIO_SPACE_ID") or None,
    )
    return TrackioTracker(run)
