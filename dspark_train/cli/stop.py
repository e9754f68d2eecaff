"""`dspark-train stop`: checkpoint and end a run; also clears up after a run whose controller is gone."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from dspark_train.cli.runs import find_run
from dspark_train.errors import UsageError
from dspark_train.plan.run_layout import RunLayout
from dspark_train.report import state_file

ORDER_TIMEOUT_S = 5.0
WAIT_TIMEOUT_S = 900.0


def command(
    run: Annotated[str | None, typer.Argument(help="Name or directory of the run; the newest if left out.")] = None,
    now: Annotated[bool, typer.Option("--now", help="End without writing a checkpoint.")] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Return when the run has ended.")] = False,
) -> None:
    """Write a checkpoint and stop the run.

    Example: dspark-train stop quickstart-1 --wait
    """
    layout = find_run(run)
    state = state_file.current(layout)
    if state is None or state.is_terminal:
        print(f"run {layout.name} is not running" + (f": {state.state}" if state else ""))
        return
    if state.state == "lost":
        _clear_up(layout, now)
        return
    answer = state_file.request(
        layout, state.controller.url, "POST", "/v1/stop", body={"now": now}, timeout_s=ORDER_TIMEOUT_S
    )
    if answer is None:
        raise UsageError(f"the controller of {layout.name} did not take the order; see `dspark-train status`")
    print(f"run {layout.name} is stopping" + (" now" if now else " at the next step, with a checkpoint"))
    if wait:
        _wait(layout)


def _wait(layout: RunLayout) -> None:
    deadline_s = time.monotonic() + WAIT_TIMEOUT_S
    while time.monotonic() < deadline_s:
        state = state_file.read(layout.state)
        if state is not None and state.is_terminal:
            print(f"run {layout.name} is {state.state} at step {state.step}")
            return
        time.sleep(0.2)
    raise UsageError(f"run {layout.name} did not stop within {WAIT_TIMEOUT_S:.0f} s; `stop --now` ends it at once")


def _clear_up(layout: RunLayout, now: bool) -> None:
    """End what a dead controller left behind. Without it no checkpoint can be ordered, so ``--now`` must be said."""
    if not now:
        raise UsageError(
            f"the controller of {layout.name} is gone, so no checkpoint can be written: "
            "`stop --now` ends what is left; `launch --resume` goes on from the last checkpoint"
        )
    from dspark_train.cli.sweep import sweep

    ended = sweep(layout)
    print(f"run {layout.name}: ended what was left ({', '.join(ended) or 'nothing'})")
