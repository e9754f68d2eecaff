"""Experiment trackers beside TensorBoard: Weights & Biases, MLflow, trackio, as `run.trackers` names them.

They are for looking, as TensorBoard is: metrics.jsonl is the record. A tracker talks to a server and may be slow, even
gone, so it has a thread of its own behind a queue: training waits for none, and a fault ends that tracker alone.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Protocol

from dspark_train.plan.run_layout import RunLayout
from dspark_train.topology.resolve import Resolved

logger = logging.getLogger(__name__)
Values = Mapping[str, float]
MAX_QUEUED = 10_000
"""Steps that a tracker may lag behind; later ones are then left out for it."""
CLOSE_TIMEOUT_S = 10.0
MODULES = {name: f"dspark_train.controller.on_{name}" for name in ("wandb", "mlflow", "trackio")}


class Tracker(Protocol):
    """One experiment in one tracker. Used by one thread; may raise whatever its library raises."""

    def log(self, step: int, values: Values) -> None:
        """Record figures of a step; the same step may come again after a resume."""

    def close(self) -> None:
        """Send what is left."""


Open = Callable[[RunLayout, Mapping[str, object]], Tracker]
"""Opens the tracker's experiment for a run, with the run's settings: the one that it had before, where it resumes."""


def opener(name: str) -> Open:
    """The function that opens a tracker; its library is imported when it is called."""

    def open_tracker(layout: RunLayout, settings: Mapping[str, object]) -> Tracker:
        tracker: Tracker = import_module(MODULES[name]).open_tracker(layout, settings)
        return tracker

    return open_tracker


def trackers_of(layout: RunLayout, resolved: Resolved) -> list[Tracking]:
    """Those that the topology names, opening; their experiments get the training's settings."""
    topology = resolved.topology
    settings = {
        "algorithm": topology.draft.algorithm,
        "target": topology.target.model,
        "layers": ",".join(map(str, topology.target.layers)),
        "seq_len": topology.data.seq_len,
        "step_packs": topology.data.step_packs,
        "seed": topology.run.seed,
        **topology.draft.train,
    }
    return [Tracking(name, opener(name), layout, settings) for name in topology.run.trackers]


class Tracking:
    """A tracker in its own thread. Nothing here raises or waits, but ``close``, which waits for a bounded time."""

    def __init__(self, name: str, open_tracker: Open, layout: RunLayout, settings: Mapping[str, object]) -> None:
        self._name, self._open, self._layout, self._settings = name, open_tracker, layout, settings
        self._queue: queue.Queue[tuple[int, Values] | None] = queue.Queue(MAX_QUEUED)
        self._num_left_out = 0
        self._thread = threading.Thread(target=self._work, name=f"tracker-{name}", daemon=True)
        self._thread.start()

    def append(self, step: int, values: Values) -> None:
        """Hand figures over; what does not fit the queue is left out."""
        try:
            self._queue.put_nowait((step, values))
        except queue.Full:
            self._num_left_out += 1
            if self._num_left_out == 1:
                logger.warning("%s lags %d steps behind: it misses steps from %d on", self._name, MAX_QUEUED, step)

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Let it send what is left, for a bounded time; twice is fine."""
        if not self._thread.is_alive():
            return
        try:
            self._queue.put(None, timeout=timeout_s)
        except queue.Full:
            logger.warning("%s takes nothing any more: left as it is", self._name)
            return
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            logger.warning("%s has not sent all within %g s: left as it is", self._name, timeout_s)

    def _work(self) -> None:
        try:
            tracker = self._open(self._layout, self._settings)
            while (item := self._queue.get()) is not None:
                tracker.log(*item)
            tracker.close()
        except Exception as error:  # noqa: BLE001 - the libraries raise anything; training goes on without
            text = f"{type(error).__name__}: {error}"
            logger.warning("%s is not written to any more: %s; metrics.jsonl has everything", self._name, text)
            self._drain()

    def _drain(self) -> None:
        """Take what still comes and drop it, so that nobody waits for room."""
        while self._queue.get() is not None:
            pass
