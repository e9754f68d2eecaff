"""`dspark-train bench serving`: how fast the target serves with its draft and alone; the figures and plots of a run."""

from __future__ import annotations

from collections.abc import Sequence
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from dspark_train.cli.served import find_served
from dspark_train.errors import UsageError

if TYPE_CHECKING:
    from dspark_train.cli.served import Served
    from dspark_train.evaluate.sweep import Sweep


def measure(
    source: str | None,
    topology: Path | None,
    *,
    target: str | None,
    prompts: Path | None,
    concurrency: str,
    max_tokens: int,
    requests_a_user: int,
    out: Path | None,
) -> tuple[Sweep, list[Path]]:
    """Measure, write serving.json and serving.png, and return the figures and those paths."""
    from dspark_train.bench import serving

    served = find_served(source, topology, target)
    ask = serving.Ask(
        concurrency=users_of(concurrency),
        max_tokens=max_tokens,
        requests_a_user=requests_a_user,
        prompts=prompts or _prompts(served),
    )
    where = out or (served.layout.root if served.layout else Path.cwd())
    where.mkdir(parents=True, exist_ok=True)
    logs = served.layout.logs if served.layout and out is None else where
    sweep = serving.measure(served.options, served.draft, ask, logs, lambda text: typer.echo(text, err=True))
    return sweep, write(sweep, where)


def write(sweep: Sweep, where: Path) -> list[Path]:
    """The figures as JSON and as plots."""
    from dspark_train.plan.run_layout import RunLayout
    from dspark_train.report.plots import write_png
    from dspark_train.report.sweep_plots import sweep_plots, title

    layout = RunLayout(where)
    layout.serving.write_text(sweep.model_dump_json(indent=1) + "\n", encoding="utf-8")
    write_png(sweep_plots(sweep), layout.serving_plots, title(sweep))
    return [layout.serving, layout.serving_plots]


def show(sweep: Sweep, paths: Sequence[Path], *, json: bool) -> None:
    """Print the figures, and warn of what is doubtful in them."""
    from dspark_train.evaluate.sweep import problems, table

    for text in problems((*sweep.with_draft, *sweep.without_draft)):
        typer.echo(f"warning: {text}", err=True)
    for line in [dumps(as_json(sweep))] if json else [*table(sweep), *map(str, paths)]:
        print(line)


def as_json(sweep: Sweep) -> dict[str, Any]:
    """What `--json` prints."""
    return sweep.model_dump(mode="json") | {"speedups": {str(users): x for users, x in sweep.speedups().items()}}


def users_of(text: str) -> tuple[int, ...]:
    """Numbers with commas between them. Raises UsageError."""
    try:
        found = tuple(int(part) for part in text.split(","))
    except ValueError:
        found = ()
    if not found or min(found) < 1:
        raise UsageError(f"--concurrency {text}: give numbers of users, such as 1,2,4,8,16")
    return found


def _prompts(served: Served) -> Path:
    """The questions of the run's own data set. Raises UsageError where they are not here."""
    from dspark_train.topology.resolve import Resolved

    if served.layout is not None:
        resolved = Resolved.model_validate_json(served.layout.resolved.read_text(encoding="utf-8"))
        path = Path(resolved.topology.data.path) / "conversations.jsonl"
        if path.is_file():
            return path
    raise UsageError("give --prompts FILE: conversations, as `prepare` reads them, whose questions are asked")
