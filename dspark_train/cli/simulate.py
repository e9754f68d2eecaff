"""`dspark-train simulate`: the balance on a virtual clock, beside other laws. Starts nothing."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from dspark_train.balance.rule import Settings
    from dspark_train.simulate.run import Course
    from dspark_train.simulate.scenario import Scenario
    from dspark_train.topology.resolve import Resolved


def command(
    topology: Annotated[Path, typer.Option("--topology", "-t", help="The topology file.")],
    scenario: Annotated[Path, typer.Option("--scenario", "-s", help="The scenario file; scenarios/ holds some.")],
    set_: Annotated[list[str] | None, typer.Option("--set", help="Override a value of the topology: a.b=c.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the first seed's course into this .html file.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Play a scenario with the balance and with other laws, and compare them with the best possible split.

    Example: dspark-train simulate --topology topologies/single-node.yaml --scenario scenarios/bad-start.yaml
    """
    from dspark_train.balance.rule import Settings
    from dspark_train.cli.plan import resolve_file
    from dspark_train.errors import UsageError
    from dspark_train.simulate.read import read

    if plot is not None and plot.suffix != ".html":
        raise UsageError(f"--plot {plot}: draws HTML with a picture in it: name a file that ends in .html")
    played = read(scenario)
    resolved = resolve_file(topology, (*played.set, *(set_ or ())))
    courses = play(Settings.of(resolved), played, resolved)
    if plot is not None:
        _write(plot, played, courses)
    if json:
        from json import dumps

        from dspark_train.simulate.run import summary

        print(dumps({"scenario": played.name, **summary(courses)}, indent=1))
    else:
        _show(played, courses)


def play(settings: Settings, scenario: Scenario, resolved: Resolved) -> dict[str, list[Course]]:
    """Every law with every seed. Raises UsageError for a start that the topology does not allow."""
    from dspark_train.balance.seen import Split
    from dspark_train.simulate.run import LAWS, run

    topology = resolved.topology
    start = Split(topology.engines.count.start, topology.trainers.ranks.start)
    if scenario.start is not None:
        start = Split(scenario.start.engines, scenario.start.ranks)
    return {law: [run(settings, scenario, start, law, seed, resolved) for seed in scenario.seeds] for law in LAWS}


def _write(path: Path, scenario: Scenario, courses: dict[str, list[Course]]) -> None:
    from dspark_train.errors import UsageError
    from dspark_train.simulate.plot import page

    try:
        path.write_text(page(scenario, {law: found[0] for law, found in courses.items()}), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--plot {path}: cannot be written ({error.strerror}): name another file") from error


def _show(scenario: Scenario, courses: dict[str, list[Course]]) -> None:
    from statistics import fmean

    from rich.console import Console
    from rich.table import Table

    ideal = fmean(course.ideal_samples for course in next(iter(courses.values())))
    num = len(scenario.seeds)
    runs = f"mean of {num} runs" if num > 1 else "one run"
    table = Table(title=f"{scenario.name}: {scenario.hours:g} h, {runs}, ideal {ideal:,.0f} samples")
    table.add_column("law")
    for name in ("samples", "of ideal", "regret", "moves", "reversals"):
        table.add_column(name, justify="right")
    for law, found in courses.items():
        samples = fmean(course.samples for course in found)
        moves, back = (fmean(len(c.moves) for c in found), fmean(c.num_reversals for c in found))
        of_ideal = fmean(course.of_ideal for course in found)
        table.add_row(law, f"{samples:,.0f}", f"{of_ideal:.1%}", f"{ideal - samples:,.0f}", f"{moves:g}", f"{back:g}")
    console = Console()
    if scenario.text:
        console.print(scenario.text)
    console.print(table)
