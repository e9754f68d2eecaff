"""`dspark-train bench`: transfer, pipeline, ledger and start-up, measured. Decides nothing, prints a table or JSON."""

from __future__ import annotations

import json as json_module
from collections.abc import Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from dspark_train.errors import UsageError

GB = 1e9


class What(StrEnum):
    """What is measured."""

    ingest = "ingest"
    pipeline = "pipeline"
    ledger = "ledger"
    peer = "peer"
    memory = "memory"
    start = "start"
    serving = "serving"
    profile = "profile"


def command(
    what: Annotated[What, typer.Argument(help="ingest, pipeline, ledger, peer, memory, start, serving or profile.")],
    run: Annotated[
        str | None, typer.Argument(help="start, serving, profile: the run or its directory; the newest if left out.")
    ] = None,
    topology: Annotated[
        Path | None, typer.Option("--topology", help="What is run; serving: its options; profile: its rates are kept.")
    ] = None,
    sets: Annotated[list[str] | None, typer.Option("--set", help="Change one value: a.b=c.")] = None,
    pairs: Annotated[int, typer.Option("--pairs", min=1, help="Measurements of each side, in turns.")] = 5,
    steps: Annotated[int, typer.Option("--steps", min=24, help="pipeline, peer, memory: steps of each run.")] = 40,
    concurrency: Annotated[str, typer.Option("--concurrency", help="serving: users at once, in turn.")] = "1,2,4,8,16",
    prompts: Annotated[Path | None, typer.Option("--prompts", help="serving: conversations with questions.")] = None,
    max_tokens: Annotated[int, typer.Option("--max-tokens", min=2, help="serving: longest answer.")] = 128,
    requests: Annotated[int, typer.Option("--requests", min=1, help="serving: requests of each user.")] = 4,
    target: Annotated[str | None, typer.Option("--target", help="serving: the target, if it moved.")] = None,
    out: Annotated[Path | None, typer.Option("--out", help="serving: directory for serving.json and .png.")] = None,
    save: Annotated[
        bool, typer.Option("--save/--no-save", help="pipeline: keep the rates beside the topology, for `plan`.")
    ] = True,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Measure this machine and what runs on it. Nothing else should run meanwhile.

    Example: dspark-train bench ingest --json

    ingest: samples into a rank, against memcpy and against the peer's loader. ledger: operations a second. pipeline: a
    run against its engine alone and its trainer alone. peer: a run against the peer's own training. memory: a rank's
    peak against the plan. start: the phases of a run's start. serving: an exported draft beside its target, by the
    number of users, with the draft and without. profile: what the balance of a run saw, kept beside --topology for
    `plan`, as pipeline keeps its own. docs/benchmarks.md says how each is measured.
    """
    if what is What.serving:
        from dspark_train.cli import bench_serving

        measured = bench_serving.measure(
            run,
            topology,
            target=target,
            prompts=prompts,
            concurrency=concurrency,
            max_tokens=max_tokens,
            requests_a_user=requests,
            out=out,
        )
        bench_serving.show(*measured, json=json)
        return
    if what is What.profile:
        from dspark_train.cli.measured import save_run

        save_run(run, _needed(what, topology), json=json)
        return
    figures = _measure(what, run, topology, sets or [], pairs, steps)
    for line in [json_module.dumps(figures)] if json else table(what, figures):
        print(line)
    if what is What.pipeline and save:
        from dspark_train.cli.measured import save_pipeline

        save_pipeline(figures, _needed(what, topology), tuple(sets or ()))


def _measure(
    what: What, run: str | None, topology: Path | None, sets: list[str], num_pairs: int, num_steps: int
) -> dict[str, Any]:
    if what is What.start:
        from dspark_train.bench.start_phases import start_phases
        from dspark_train.cli.runs import find_run

        return start_phases(find_run(run).events.read_text(encoding="utf-8").splitlines())
    if run is not None:
        raise UsageError(f"bench {what.value} takes no run: only `bench start`, `serving` and `profile` do")
    if what is What.ingest:
        from dspark_train.bench.ingest import measure

        return measure(num_pairs)
    if what is What.ledger:
        from dspark_train.bench.ledger import measure as measure_ledger

        return measure_ledger(num_pairs)
    return _measure_runs(what, _needed(what, topology), tuple(sets), num_pairs, num_steps)


def _needed(what: What, topology: Path | None) -> Path:
    if topology is None:
        does = "keeps the rates beside it" if what is What.profile else "runs it"
        raise UsageError(f"bench {what.value} needs --topology: it {does}")
    return topology


def _measure_runs(what: What, path: Path, sets: tuple[str, ...], num_pairs: int, num_steps: int) -> dict[str, Any]:
    """The kinds of measurement that launch whole runs."""
    from dspark_train.bench import pipeline
    from dspark_train.cli.launch import prepare_launch

    if what is What.memory:
        from dspark_train.bench import memory

        num_steps = memory.checked_steps(prepare_launch(path, sets)[0], num_steps)
    all_sets = (*sets, *pipeline.overrides(num_steps))
    if what is What.peer:
        from dspark_train.bench import peer

        peer_sets = (*all_sets, *peer.OVERRIDES)
        return peer.measure(path, peer_sets, prepare_launch(path, peer_sets)[:2], num_steps, num_pairs)
    resolved, plan, _ = prepare_launch(path, all_sets)
    if what is What.memory:
        return memory.measure(path, all_sets, (resolved, plan))
    extra = pipeline.side_overrides(resolved, num_steps)
    sides = {side: prepare_launch(path, (*all_sets, *own))[:2] for side, own in extra.items()}
    return pipeline.measure(path, all_sets, sides, num_steps, num_pairs)


def table(what: What, figures: Mapping[str, Any]) -> Iterator[str]:
    """The figures as lines for a terminal of 80 columns."""
    rows = list(_phases(figures) if what is What.start else _rows(figures))
    width = max((len(label) for label, _ in rows), default=0)
    for label, value in rows:
        yield f"{label:<{width}}  {value:>14}"


def _phases(figures: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for phase in figures["phases"]:
        yield phase["phase"], f"{phase['took_s']:.2f} s"
    total_s = figures["total_s"]
    yield "total", "did not end" if total_s is None else f"{total_s:.2f} s"


def _rows(figures: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for key, value in figures.items():
        if isinstance(value, int | float):
            yield _label(key), _value(key, float(value))


def _label(key: str) -> str:
    for unit in ("_bytes_per_s", "_s_per_gb", "_bytes"):
        key = key.removesuffix(unit)
    return key.replace("_", " ")


def _value(key: str, value: float) -> str:
    if key.endswith("_bytes_per_s"):
        return f"{value / GB:.2f} GB/s"
    if key.endswith("_bytes"):
        return f"{value / 2**20:.0f} MiB"
    if key.endswith("_s_per_gb"):
        return f"{value:.3f} s/GB"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
