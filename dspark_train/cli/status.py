"""`dspark-train status`: the run now, from its controller if that lives, else from the files alone."""

from __future__ import annotations

import os
import time
from typing import Annotated

import typer

from dspark_train.cli.runs import find_run
from dspark_train.errors import RunNotFound
from dspark_train.plan.run_layout import RunLayout
from dspark_train.report import state_file
from dspark_train.report.state import RunState, exit_code

WATCH_EVERY_S = 1.0


def command(
    run: Annotated[str | None, typer.Argument(help="Name or directory of the run; the newest if left out.")] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Go on until the run ends.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show the run now.

    Example: dspark-train status quickstart-1 --watch

    Ends with 0 (healthy or ended well), 1 (failed), 4 (degraded), 5 (the controller does not answer).
    """
    layout = find_run(run)
    state = state_file.current(layout)
    if state is None:
        raise RunNotFound(f"{layout.root} has no state yet: its controller never started; see {layout.logs}")
    if json:
        print(state.to_json())
    elif watch:
        from dspark_train.cli.follow import follow

        state = follow(layout)
    else:
        show(layout, state)
    raise typer.Exit(exit_code(state))


def show(layout: RunLayout, state: RunState) -> None:
    """Print the state once, and where there is more to see."""
    from rich.console import Console

    from dspark_train.report.pace import paces_on_disk_s
    from dspark_train.report.terminal import render, time_left

    console = Console(emoji=False)
    paces_s = [] if state.is_terminal else paces_on_disk_s(layout.history, layout.metrics)
    console.print(render(state, time_left(state, *paces_s)))
    age_s = state_file.age_s(state)
    if not state.is_terminal and age_s > 10:
        console.print(f"last written {age_s:.0f} s ago ({time.strftime('%H:%M:%S')} now)", style="yellow")
    if state.state in ("running", "starting", "stopping") and os.access(layout.token, os.R_OK):
        console.print(f"in a browser: dspark-train page {state.run}", style="dim")
    elif state.is_terminal:
        console.print(f"its story: dspark-train report {state.run}", style="dim")
