"""`dspark-train prepare`: conversations into the training set. Everything that can be refused is refused first."""

from __future__ import annotations

import json as json_module
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dspark_train.errors import UsageError

if TYPE_CHECKING:
    from dspark_train.cli.prepare_run import Job
    from dspark_train.cli.prepare_view import Outcome
    from dspark_train.topology.resolve import Resolved
    from dspark_train.topology.schema import Topology

NUM_CORES_LEFT = 1
"""Cores that the server's own processes need beside its threads, which wait for each other: two threads on two cores
wrote 80-170 tokens/s, one wrote 370-450."""
ANSWER_SHARE = 5
"""Left to itself, an answer may take a fifth of ``data.seq_len``: prompts and histories need the rest."""


def command(
    topology: Annotated[Path, typer.Option("--topology", "-t", help="The topology file.")],
    set_: Annotated[list[str] | None, typer.Option("--set", help="Override a value of the file: a.b=c.")] = None,
    data: Annotated[
        list[Path] | None,
        typer.Option(help="Conversation file or data set directory, repeatable; data.source if left out."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Directory to make; data.path if left out.")] = None,
    regenerate: Annotated[
        bool, typer.Option("--regenerate", help="Have the target write every answer itself: better drafts.")
    ] = False,
    unpack_target: Annotated[
        bool, typer.Option("--unpack-target", help="Unpack the quickstart's target where target.model is missing.")
    ] = False,
    endpoint: Annotated[
        str | None, typer.Option(help="A running vLLM server (--enable-scale-out) to use instead of starting one.")
    ] = None,
    temperature: Annotated[
        float | None, typer.Option(min=0, max=2, help="Of regenerated answers; the target's own choice if left out.")
    ] = None,
    max_tokens: Annotated[
        int | None, typer.Option(min=1, help="Of one regenerated answer; a fifth of data.seq_len if left out.")
    ] = None,
    concurrency: Annotated[int, typer.Option(min=1, help="Answers written at a time.")] = 32,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Threads of the server on CPU; one less than the cores if left out.")
    ] = None,
    min_trained_tokens: Annotated[int, typer.Option(min=1, help="Samples with fewer trained tokens are dropped.")] = 1,
    max_bad_frac: Annotated[
        float, typer.Option(min=0, max=1, help="Part of broken records from which the input is refused.")
    ] = 0.05,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a data set made from other inputs.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Make the training set from conversations, with the target's chat template and loss masks.

    Example: dspark-train prepare --topology topologies/quickstart.yaml --unpack-target --regenerate
    """
    from dspark_train.cli.prepare_run import run
    from dspark_train.cli.prepare_view import Narrator

    asked = Asked(
        sources=tuple(str(path) for path in data or ()),
        out=out,
        regenerate=regenerate,
        unpack_target=unpack_target,
        endpoint=(endpoint or "").rstrip("/"),
        temperature=temperature,
        max_tokens=max_tokens,
        concurrency=concurrency,
        threads=threads or max(1, len(os.sched_getaffinity(0)) - NUM_CORES_LEFT),
        min_trained_tokens=min_trained_tokens,
        max_bad_frac=max_bad_frac,
    )
    job = _checked(topology, tuple(set_ or ()), asked)
    narrator = Narrator()
    narrator.problems(job.reading.skipped, "broken records, skipped")
    _show(job, _existing(job, overwrite) or run(job, narrator), json)


@dataclass(frozen=True)
class Asked:
    """The options of the command line. sources, out: empty where the topology decides."""

    sources: tuple[str, ...]
    out: Path | None
    regenerate: bool
    unpack_target: bool
    endpoint: str
    temperature: float | None
    max_tokens: int | None
    concurrency: int
    threads: int
    min_trained_tokens: int
    max_bad_frac: float


def _checked(path: Path, overrides: tuple[str, ...], asked: Asked) -> Job:
    """Read and check every input; start nothing. Raises TopologyError, DataError, UsageError."""
    from dspark_train.cli.prepare_run import Job
    from dspark_train.data.conversations import read_conversations
    from dspark_train.data.prepare import Options, check_out
    from dspark_train.data.regenerate import Sampling
    from dspark_train.topology.load import load

    topology = load(path, overrides)
    sources = asked.sources or topology.data.source
    if not sources:
        raise UsageError(f"no conversations to read: give --data FILE, or set data.source in {path}")
    model, seq_len, seed = topology.target.model, topology.data.seq_len, topology.run.seed
    longest = asked.max_tokens or max(1, seq_len // ANSWER_SHARE)
    if asked.regenerate and longest >= seq_len:
        raise UsageError(f"--max-tokens {longest} leaves no room for a prompt within data.seq_len {seq_len}: lower it")
    resolved = _resolve(topology, asked.unpack_target)
    reading = read_conversations(sources, regenerate=asked.regenerate, max_bad_frac=asked.max_bad_frac)
    out = (asked.out or Path(topology.data.path)).expanduser()
    check_out(out)
    return Job(
        resolved=resolved,
        reading=reading,
        out=out,
        options=Options(model, seq_len, seed, asked.min_trained_tokens, topology.target.trust_remote_code),
        sampling=Sampling(asked.temperature, longest, seed) if asked.regenerate else None,
        unpack=asked.unpack_target and not resolved.facts.is_local,
        endpoint=asked.endpoint,
        concurrency=asked.concurrency,
        threads=asked.threads,
        max_bad_frac=asked.max_bad_frac,
    )


def _resolve(topology: Topology, unpack_target: bool) -> Resolved:
    """Read the target's facts; see that it is there, or can be unpacked. Raises UsageError, TopologyError."""
    from dspark_train.data.quickstart_target import check
    from dspark_train.data.target import check_available, read_target_facts
    from dspark_train.topology.resolve import resolve

    model = topology.target.model
    facts = read_target_facts(model)
    if not facts.source and unpack_target:
        check(Path(model).expanduser())
    elif not facts.source:
        check_available(model)
    return resolve(topology, facts)


def _existing(job: Job, overwrite: bool) -> Outcome | None:
    """The data set that is there, where it was made from the same inputs; None where it is to be made.

    Raises UsageError where it would be replaced without being asked to.
    """
    from dspark_train.cli.prepare_run import outcome_of
    from dspark_train.data.dataset import Dataset, read_info
    from dspark_train.data.inputs import differences

    info = None if overwrite else read_info(job.out)
    if info is None:
        return None
    if info.inputs == job.inputs.digest:
        return outcome_of(job, Dataset.open(job.out), made=False)
    changed = ", ".join(differences(job.inputs.described, info.options)) or "other inputs"
    raise UsageError(f"the data set {job.out} was made from other inputs ({changed}): --overwrite replaces it")


def _show(job: Job, outcome: Outcome, json: bool) -> None:
    if json:
        print(json_module.dumps(outcome.as_json()))
        return
    from rich.console import Console

    from dspark_train.cli.prepare_view import preview, summary
    from dspark_train.data.dataset import Dataset
    from dspark_train.data.preview import sample_text

    console = Console(highlight=False)
    if not outcome.made:
        console.print(
            f"the data set {job.out} was made from the same inputs already ({outcome.num_samples:,} samples, "
            f"{outcome.num_tokens:,} tokens): nothing to do; --overwrite makes it anew",
            soft_wrap=True,
        )
        return
    console.print(summary(outcome))
    pieces = sample_text(Dataset.open(job.out), 0, job.options.model, trust_remote_code=job.options.trust_remote_code)
    console.print(preview(pieces), soft_wrap=True)
