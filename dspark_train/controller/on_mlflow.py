"""A run in MLflow: at MLFLOW_TRACKING_URI, else in a SQLite file of the run's directory.

`mlflow ui --backend-store-uri sqlite:///RUN/mlflow.db` shows that one.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any

from dspark_train.plan.run_layout import RunLayout

EXPERIMENT = "dspark-train"
MAX_PARAM_CHARS = 500


class MlflowTracker:
    """See `trackers.Tracker`."""

    def __init__(self, client: Any, run_id: str) -> None:
        self._client, self._run_id = client, run_id

    def log(self, step: int, values: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        now_ms = int(time.time() * 1000)
        metrics = [Metric(key, value, now_ms, step) for key, value in values.items()]
        self._client.log_batch(self._run_id, metrics=metrics)

    def close(self) -> None:
        self._client.set_terminated(self._run_id)


def open_tracker(layout: RunLayout, settings: Mapping[str, object]) -> MlflowTracker:
    """The run of that name in the experiment, taken up again where there is one."""
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{layout.root}/mlflow.db")
    name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or EXPERIMENT
    experiment = client.get_experiment_by_name(name)
    experiment_id = experiment.experiment_id if experiment else client.create_experiment(name)
    found = client.search_runs([experiment_id], f"tags.`mlflow.runName` = '{layout.name}'", max_results=1)
    if found:
        run_id = found[0].info.run_id
        client.update_run(run_id, status="RUNNING")
        return MlflowTracker(client, run_id)
    run_id = client.create_run(experiment_id, run_name=layout.name).info.run_id
    for key, value in settings.items():
        client.log_param(run_id, key, str(value)[:MAX_PARAM_CHARS])
    return MlflowTracker(client, run_id)
