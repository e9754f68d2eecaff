"""`dspark-train doctor`: is this machine, or each node of a cluster, fit to run? A table, worst first."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dspark_train.cli.runs import runs_dir

if TYPE_CHECKING:
    from dspark_train.cluster.checks import Finding, Need
    from dspark_train.cluster.fleet_rules import Fleet

NAMESPACE = "dspark-doctor"


def command(
    topology: Annotated[
        Path | None, typer.Option("--topology", "-t", help="Check for the needs of this topology as well.")
    ] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="Override a value of the file: a.b=c.")] = None,
    address: Annotated[
        str | None, typer.Option(help="Check every node of this Ray cluster; left out, RAY_ADDRESS or this machine.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Leave out what takes long: loading torch and vLLM.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Check versions, libraries, memory, disk, limits, ports, clock, GPUs and network, here or on every node.

    Example: dspark-train doctor --topology topologies/quickstart.yaml

    Ends with 0 where nothing failed (warnings included), 1 where something did.
    """
    need = _need(topology, tuple(set_ or ()))
    address = address or os.environ.get("RAY_ADDRESS")
    if not as_json and not quick:
        typer.echo("loading torch and vLLM takes a few seconds", err=True)
    findings, fleet = (
        _cluster(address, need, not quick) if address else (_machine(need, bool(topology), not quick), None)
    )
    num_failed = sum(finding.status == "failed" for finding in findings)
    if as_json:
        told = {"fit": num_failed == 0, "checks": [finding.to_json() for finding in findings]}
        typer.echo(json.dumps(told | (_nodes(fleet) if fleet else {})))
    else:
        _show(findings, fleet)
    raise typer.Exit(1 if num_failed else 0)


def _machine(need: Need, for_topology: bool, loads: bool) -> list[Finding]:
    from dspark_train.cluster.checks import run_checks, worst_first
    from dspark_train.cluster.collect import collect
    from dspark_train.cluster.machine_checks import MACHINE_CHECKS
    from dspark_train.cluster.need_checks import NEED_CHECKS
    from dspark_train.cluster.rack_rules import MACHINE_RULES, judge
    from dspark_train.cluster.software_checks import SOFTWARE_CHECKS

    checks = [*(SOFTWARE_CHECKS if loads else ()), *MACHINE_CHECKS, *(NEED_CHECKS if for_topology else ())]
    return worst_first([*run_checks(checks, need), *judge(collect("127.0.0.1"), need, MACHINE_RULES)])


def _cluster(address: str, need: Need, loads: bool) -> tuple[list[Finding], Fleet]:
    from dspark_train.cluster.connect import connect
    from dspark_train.cluster.inspect_nodes import inspect_nodes

    cluster = connect(address, NAMESPACE)
    try:
        return inspect_nodes(cluster, need, loads=loads, rates=True)
    finally:
        cluster.close()


def _need(topology: Path | None, overrides: tuple[str, ...]) -> Need:
    from dspark_train.cluster.checks import Need

    if topology is None:
        return Need(runs_dir=runs_dir())
    from dspark_train.cli.plan import resolve_file
    from dspark_train.cluster.need_checks import need_of
    from dspark_train.plan.build import build_plan

    resolved = resolve_file(topology, overrides)
    return need_of(resolved, build_plan(resolved), runs_dir())


def _nodes(fleet: Fleet) -> dict[str, Any]:
    from dataclasses import asdict

    nodes = {node: asdict(facts) | {"skew_s": fleet.skew_s[node][0]} for node, facts in fleet.facts.items()}
    return {"nodes": nodes, "links": [asdict(link) for link in fleet.links]}


def _show(findings: Sequence[Finding], fleet: Fleet | None) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    colours = {"failed": "bold red", "warning": "yellow", "ok": "green"}
    table = Table(box=None, pad_edge=False)
    for title in ("", *(("where",) if fleet else ()), "check", "found", "what to do"):
        table.add_column(title, overflow="fold")
    for finding in findings:
        status = f"[{colours[finding.status]}]{finding.status}[/]"
        where = (escape(finding.node),) if fleet else ()
        table.add_row(status, *where, finding.check, escape(finding.text), escape(finding.remedy))
    console = Console()
    console.print(table)
    num_bad = sum(finding.status != "ok" for finding in findings)
    fit = "every node is fit to run" if fleet else "this machine is fit to run"
    console.print(f"{num_bad} of {len(findings)} checks need attention" if num_bad else fit)
