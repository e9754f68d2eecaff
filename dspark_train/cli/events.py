"""`dspark-train events`: the journal of a run."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Annotated, Any

import typer

from dspark_train.cli.runs import find_run
from dspark_train.controller import journal
from dspark_train.plan.run_layout import RunLayout
from dspark_train.report.state_file import current

POLL_S = 0.5
"""How often `--follow` looks for new events and for the end of the run."""


def command(
    run: Annotated[str | None, typer.Argument(help="Name or directory of the run; the newest if left out.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the run has ended.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the journal's lines, one JSON object each.")] = False,
) -> None:
    """Show what happened in a run: what started, failed, was decided, in the order it happened.

    Example: dspark-train events a1 --follow
    """
    layout = find_run(run)
    events: Iterable[dict[str, Any]]
    events = journal.follow(layout.events, lambda: has_ended(layout), POLL_S) if follow else journal.read(layout.events)
    for event in events:
        typer.echo(json.dumps(event) if as_json else format_event(event))


def has_ended(layout: RunLayout) -> bool:
    """Whether nothing more will be written: the run is over, or its controller is gone."""
    state = current(layout)
    return state is not None and (state.is_terminal or state.state == "lost")


def format_event(event: dict[str, Any]) -> str:
    """One line for a person: local figures are left to `--json`."""
    lines = str(event.get("text", "")).splitlines() or [""]
    head = f"{event.get('at', '')}  {event.get('who', ''):<12} {event.get('kind', ''):<20} {lines[0]}"
    return "\n".join([head, *(f"    {line}" for line in lines[1:])])
