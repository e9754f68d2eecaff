"""`dspark-train report`: the story of a run as one HTML file, from its own files alone."""

from __future__ import annotations

from typing import Annotated

import typer

from dspark_train.cli.runs import find_run
from dspark_train.errors import RunNotFound, UsageError


def command(
    run: Annotated[str | None, typer.Argument(help="Name or directory of the run; the newest if left out.")] = None,
) -> None:
    """Write report.html and report.png: what ran, how it was scaled, what time was lost to what, what came out.

    Example: dspark-train report a1

    Works while the run goes on, and when all of it is dead. The HTML file holds everything and can be sent as it is.
    """
    from dspark_train.controller import journal
    from dspark_train.report.document import write_report
    from dspark_train.report.story import read_story

    layout = find_run(run)
    story = read_story(layout, journal.read(layout.events))
    if story is None:
        raise RunNotFound(f"{layout.root} has no state yet: its controller never started; see {layout.logs}")
    try:
        paths = write_report(layout, story)
    except OSError as error:
        raise UsageError(f"{layout.root} cannot be written to: {error}") from error
    for path in paths:
        typer.echo(path)
