"""`dspark-train logs`: the log files of a run's components."""

from __future__ import annotations

import time
from datetime import datetime
from fnmatch import fnmatch
from pathlib import Path
from typing import Annotated

import typer

from dspark_train.cli.events import has_ended
from dspark_train.cli.runs import find_run
from dspark_train.errors import RunNotFound, UsageError
from dspark_train.plan.run_layout import RunLayout
from dspark_train.report import state_file
from dspark_train.report.log_merge import merged
from dspark_train.report.log_tail import last_lines, log_paths

POLL_S = 0.3
"""How often `-f` looks for new lines."""


def command(
    run: Annotated[str | None, typer.Argument(help="Name or directory of the run; the newest if left out.")] = None,
    component: Annotated[str | None, typer.Argument(help="engine-1.0, rank-0, ledger, ...; all if left out.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the run has ended.")] = False,
    num_lines: Annotated[int, typer.Option("-n", min=0, help="Last lines of each log that are shown.")] = 20,
    merge: Annotated[
        bool, typer.Option("--merge", "-m", help="All as one, by time, each line with its member.")
    ] = False,
    only: Annotated[
        str, typer.Option("--only", help="With --merge: components by pattern, such as 'rank-*,ledger'.")
    ] = "*",
) -> None:
    """Show the last lines of a component's log, or of all of them. Of a run that failed, its root cause comes first.

    Example: dspark-train logs a1 engine-1.0 -f
    Example: dspark-train logs a1 --merge --only 'engine-*'
    """
    layout, component = _split(run, component)
    paths = [path for path in log_files(layout, component) if _is_chosen(path.stem, only)]
    state = state_file.read(layout.state)
    if state is not None and state.root_cause:
        typer.echo(f"root cause: {state.root_cause}")
    if merge:
        _print_merged(paths, num_lines)
        paths = paths if follow else []
    for path in [] if merge else paths:
        if len(paths) > 1:
            typer.echo(f"==> {path.stem} <==")
        for line in last_lines(path, num_lines):
            typer.echo(line)
    if follow:
        _follow(layout, component, {path: path.stat().st_size for path in paths})


def _is_chosen(name: str, patterns: str) -> bool:
    return any(fnmatch(name, pattern.strip()) for pattern in patterns.split(","))


def _print_merged(paths: list[Path], num_lines: int) -> None:
    logs = {path.stem: last_lines(path, num_lines) for path in paths}
    width = max(map(len, logs), default=0)
    for name, line in merged(logs, datetime.now().year):
        typer.echo(f"{name:<{width}} | {line}")


def _split(run: str | None, component: str | None) -> tuple[RunLayout, str | None]:
    """`logs X` means the run X or, where there is none, the component X of the newest run."""
    try:
        return find_run(run), component
    except RunNotFound:
        if run is None or component is not None:
            raise
        newest = find_run(None)
        if not _matching(newest, run):
            raise
        return newest, run


def log_files(layout: RunLayout, component: str | None) -> list[Path]:
    """The logs of a component, or all. ``engine-1`` means each part of it. Raises UsageError naming what exists."""
    paths = _matching(layout, component)
    if not paths and component is not None:
        names = ", ".join(path.stem for path in _matching(layout, None)) or "none yet"
        raise UsageError(f"run {layout.name} has no log of {component!r}: there are {names}")
    return paths


def _matching(layout: RunLayout, component: str | None) -> list[Path]:
    every = list(log_paths(layout.logs).values())
    if component is None:
        return every
    exact = [path for path in every if path.stem == component]
    return exact or [path for path in every if path.stem.startswith(f"{component}.")]


def _follow(layout: RunLayout, component: str | None, offsets: dict[Path, int]) -> None:
    """Print what is appended, new logs included, until the run has ended."""
    over = False
    while not over:
        over = has_ended(layout)
        paths = _matching(layout, component)
        for path in paths:
            prefix = f"{path.stem}: " if len(paths) > 1 else ""
            offsets[path] = _print_new(path, offsets.get(path, 0), prefix)
        if not over:
            time.sleep(POLL_S)


def _print_new(path: Path, offset: int, prefix: str) -> int:
    if path.stat().st_size < offset:
        offset = 0  # it was rotated
    with path.open("rb") as file:
        file.seek(offset)
        chunk = file.read()
    whole = chunk[: chunk.rfind(b"\n") + 1]
    for line in whole.decode(errors="replace").splitlines():
        typer.echo(prefix + line)
    return offset + len(whole)
