"""`dspark-train page`: the link to a run's page, for whoever may read the run's token."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import typer

from dspark_train.cli.runs import find_run
from dspark_train.errors import Unreachable, UsageError
from dspark_train.report import state_file


def command(
    run: Annotated[str | None, typer.Argument(help="Name or directory of the run; the newest if left out.")] = None,
) -> None:
    """Print the link to the run's page. It carries the run's token: give it to nobody who may not scale the run.

    Example: dspark-train page a1
    """
    layout = find_run(run)
    state = state_file.current(layout)
    if state is None or state.is_terminal:
        over = "has not started" if state is None else f"is {state.state}"
        raise UsageError(f"run {layout.name} {over}, so it has no page: see `dspark-train report {layout.name}`")
    if not state.controller.url or state.state == "lost":
        raise Unreachable(f"the controller of {layout.name} does not answer: see `dspark-train status {layout.name}`")
    token = _token(layout.token)
    parts = urlsplit(state.controller.url)
    typer.echo(f"{state.controller.url}/#token={token}")
    typer.echo(
        f"from elsewhere: ssh -L {parts.port}:{parts.hostname}:{parts.port} {state.controller.host}, then", err=True
    )
    typer.echo(f"  http://127.0.0.1:{parts.port}/ and the same after it", err=True)


def _token(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except PermissionError as error:
        raise UsageError(f"{path} is for the run's owner only: ask who launched the run") from error
