"""Finding runs in the directory where runs live, and remembering which one this command is about."""

from __future__ import annotations

import json
import os
from difflib import get_close_matches
from pathlib import Path

from dspark_train.errors import RunNotFound
from dspark_train.plan.run_layout import RunLayout

RUNS_VARIABLE = "DSPARK_RUNS"
_known: list[RunLayout] = []


def runs_dir() -> Path:
    """Where runs live: ``DSPARK_RUNS``, else ``./runs``. May not exist yet."""
    return Path(os.environ.get(RUNS_VARIABLE) or "runs").absolute()


def find_run(run: str | None) -> RunLayout:
    """The run of that name or directory; None means the one launched last. Raises RunNotFound naming what exists."""
    layout = _newest() if run is None else _named(run)
    remember(layout)
    return layout


def list_runs() -> list[RunLayout]:
    """All runs of the runs directory, launched last first."""
    root = runs_dir()
    found = [RunLayout(path) for path in root.iterdir() if is_run(path)] if root.is_dir() else []
    return sorted(found, key=lambda layout: (_launched_at(layout), layout.name), reverse=True)


def newest_run_of(topology: str) -> RunLayout:
    """The run of that topology launched last. Raises RunNotFound naming what exists."""
    for layout in list_runs():
        if _topology_name(layout) == topology:
            remember(layout)
            return layout
    raise RunNotFound(f"no run of topology {topology!r} in {runs_dir()}: {_what_exists()}")


def is_run(path: Path) -> bool:
    """Whether the directory is one that `launch` made."""
    return (path / "resolved.json").is_file()


def remember(layout: RunLayout) -> None:
    """Note the run that the command works on: there goes the traceback of an error of ours."""
    _known[:] = [layout]


def remembered() -> RunLayout | None:
    """The run that the command works on, as far as it got."""
    return _known[0] if _known else None


def _named(run: str) -> RunLayout:
    by_name, by_path = runs_dir() / run, Path(run).absolute()
    for path in (by_name, by_path):
        if is_run(path):
            return RunLayout(path)
    if by_path.is_dir() or by_name.is_dir():
        where = by_path if by_path.is_dir() else by_name
        raise RunNotFound(f"{where} is not a run: it has no resolved.json. {_what_exists()}")
    close = get_close_matches(run, [layout.name for layout in list_runs()], n=1)
    hint = f"did you mean {close[0]}? " if close else ""
    raise RunNotFound(f"no run {run!r} in {runs_dir()}: {hint}{_what_exists()}")


def _newest() -> RunLayout:
    runs = list_runs()
    if not runs:
        raise RunNotFound(_what_exists())
    return runs[0]


def _launched_at(layout: RunLayout) -> float:
    return layout.resolved.stat().st_mtime


def _topology_name(layout: RunLayout) -> str:
    try:
        return str(json.loads(layout.resolved.read_text(encoding="utf-8"))["topology"]["name"])
    except (ValueError, KeyError, TypeError):
        return ""  # a half-written run is nobody's newest


def _what_exists() -> str:
    names = [layout.name for layout in list_runs()]
    if names:
        more = f" and {len(names) - 10} more" if len(names) > 10 else ""
        return f"runs there, newest first: {', '.join(names[:10])}{more}"
    return (
        f"there are no runs in {runs_dir()}: start one with `dspark-train launch --topology FILE`, "
        f"or set {RUNS_VARIABLE} to where yours are"
    )
