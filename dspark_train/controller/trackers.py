"""Experiment trackers beside TensorBoard: Weights & Biases, MLflow, trackio, as `run.trackers` names them.

They are for looking, as TensorBoard is: metrics.jsonl is the record. A tracker talks to a server and may be slow, even
gone, so it has a thread of its own behind a queue: training waits for none, and a fault ends that tracker alone.

A tracker cannot take a step back. A resumed run trains the same steps with the same losses, so what was given once is
not given again; what an earlier life could not give is taken from the record.
"""

from __future__ import annotations

import json
import logging
import queue
import threading
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Protocol

from dspark_train.controller.figures import on_disk
from dspark_train.plan.run_layout import RunLayout
from dspark_train.topology.resolve import Resolved

logger = logging.getLogger(__name__)
Values = Mapping[str, float]
Item = tuple[str, int, Values]
"""Kind ("train" or "validate"), step and figures."""
MAX_QUEUED = 10_000
"""Steps that a tracker may lag behind."""
CLOSE_TIMEOUT_S = 10.0
MODULES = {name: f"dspark_train.controller.on_{name}" for name in ("wandb", "mlflow", "trackio")}


class Tracker(Protocol):
    """One experiment in one tracker. Used by one thread; may raise whatever its library raises."""

    def log(self, step: int, values: Values) -> None:
        """Record figures of a step; a validation round comes after the step that it follows."""

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


class Given:
    """The newest step of each kind that a tracker was given, kept in a file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._steps: dict[str, int] = json.loads(path.read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            self._steps = {}

    def __contains__(self, item: Item) -> bool:
        kind, step, _ = item
        return step <= self._steps.get(kind, -1)

    def add(self, item: Item) -> None:
        """Note it on disk. Raises OSError."""
        kind, step, _ = item
        self._steps[kind] = step
        beside = self._path.with_name(self._path.name + ".new")
        beside.write_text(json.dumps(self._steps), encoding="utf-8")
        beside.replace(self._path)


class Tracking:
    """A tracker in its own thread. Nothing here raises or waits, but ``close``, which waits for a bounded time."""

    def __init__(self, name: str, open_tracker: Open, layout: RunLayout, settings: Mapping[str, object]) -> None:
        self._name, self._open, self._layout, self._settings = name, open_tracker, layout, settings
        self._queue: queue.Queue[Item | None] = queue.Queue(MAX_QUEUED)
        self._lags = False
        self._thread = threading.Thread(target=self._work, name=f"tracker-{name}", daemon=True)
        self._thread.start()

    def append(self, kind: str, step: int, values: Values) -> None:
        """Hand figures over; from the first that does not fit the queue on they wait for the run's next life."""
        if self._lags:
            return
        try:
            self._queue.put_nowait((kind, step, values))
        except queue.Full:
            self._lags = True
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
            given = Given(self._layout.tracked(self._name))
            for item in chain(on_disk(self._layout), self._queued()):
                if item not in given:
                    _, step, values = item
                    tracker.log(step, values)
                    given.add(item)
            tracker.close()
        except Exception as error:  # noqa: BLE001 - the libraries raise anything; training goes on without
            text = f"{type(error).__name__}: {error}"
            logger.warning("%s is not written to any more: %s; metrics.jsonl has everything", self._name, text)
            self._drain()

    def _queued(self) -> Iterator[Item]:
        return iter(self._queue.get, None)

    def _drain(self) -> None:
        """Take what still comes and drop it, so that nobody waits for room."""
        for _ in self._queued():
            pass
