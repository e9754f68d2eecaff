"""Following a run until it ends: a live view in a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator

from dspark_train.errors import Unreachable
from dspark_train.plan.run_layout import RunLayout
from dspark_train.report import state_file
from dspark_train.report.pace import Left, paces_on_disk_s
from dspark_train.report.state import RunState
from dspark_train.report.terminal import progress_line, render, time_left

EVERY_S = 1.0
LOST_AFTER_S = 15.0
"""A controller that does not answer for so long is called lost."""
PACES_EVERY_S = 10.0


def follow(layout: RunLayout) -> RunState:
    """Show the run until it ends; returns the last state. Raises Unreachable if its controller is gone."""
    return _live(layout) if sys.stdout.isatty() else _plain(layout)


def _states(layout: RunLayout) -> Iterator[RunState]:
    """Yield the state once a second until the run has ended, the last one included."""
    silent_since_s: float | None = None
    while True:
        state = state_file.current(layout)
        if state is not None:
            if state.state == "lost":
                silent_since_s = silent_since_s or time.monotonic()
                if time.monotonic() - silent_since_s > LOST_AFTER_S:
                    raise Unreachable(
                        f"{state.faults[-1]}; `dspark-train stop --now {state.run}` ends what is left, "
                        f"`launch --resume` goes on from the last checkpoint"
                    )
            else:
                silent_since_s = None
            yield state
            if state.is_terminal:
                return
        time.sleep(EVERY_S)


def _live(layout: RunLayout) -> RunState:
    from rich.live import Live

    paces = Paces(layout)
    state: RunState | None = None
    with Live(auto_refresh=False) as live:
        for state in _states(layout):
            live.update(render(state, paces.left(state)), refresh=True)
    assert state is not None
    return state


class Paces:
    """The run's paces, read from its files now and then: they change slowly, and a follower shall cost little."""

    def __init__(self, layout: RunLayout) -> None:
        self._layout, self._read_s, self._paces_s = layout, 0.0, [0.0]

    def left(self, state: RunState) -> Left | None:
        """The time left at these paces."""
        if time.monotonic() - self._read_s > PACES_EVERY_S:
            self._read_s = time.monotonic()
            self._paces_s = paces_on_disk_s(self._layout.history, self._layout.metrics)
        return time_left(state, *self._paces_s)


def _plain(layout: RunLayout) -> RunState:
    paces, phase, step = Paces(layout), "", 0
    state: RunState | None = None
    for state in _states(layout):
        left = paces.left(state)
        if state.phase and state.phase != phase:
            print(f"{state.state}: {state.phase}", flush=True)
        phase = state.phase
        if state.step >= step + max(1, state.total_steps // 30) or (state.step != step and state.is_terminal):
            step = state.step
            print(progress_line(state, left), flush=True)
    assert state is not None
    return state
