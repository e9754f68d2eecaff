"""`dspark-train extract`: hidden states of the whole data set into a directory, for runs without engines."""

from __future__ import annotations

import json as json_module
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dspark_train.errors import UsageError

if TYPE_CHECKING:
    from dspark_train.data.dataset import Dataset
    from dspark_train.topology.resolve import Resolved


def command(
    topology: Annotated[Path, typer.Option("--topology", "-t", help="The topology file.")],
    set_: Annotated[list[str] | None, typer.Option("--set", help="Override a value of the file: a.b=c.")] = None,
    out: Annotated[Path | None, typer.Option(help="Directory to fill; data.hidden_states if left out.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace hidden states made otherwise.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Extract the hidden states of every sample once, by engines on this machine. Goes on where it was broken off.

    Example: dspark-train extract --topology topologies/quickstart-offline.yaml
    """
    from dspark_train.cli.plan import resolve_file
    from dspark_train.data.dataset import Dataset

    resolved = resolve_file(topology, tuple(set_ or ()))
    directory = Path(out.absolute() if out else resolved.topology.data.hidden_states)
    if directory == Path():
        raise UsageError("nowhere to put them: set data.hidden_states in the topology, or give --out DIR")
    if resolved.topology.engines.nodes_per_engine > 1:
        raise UsageError("extract starts engines on this machine only: engines.nodes_per_engine must be 1")
    if resolved.layer_ids is None or resolved.facts.hidden_size is None:
        raise UsageError(f"the config of target {resolved.topology.target.model} cannot be read here: download it")
    dataset = Dataset.open(Path(resolved.topology.data.path))
    _prepare(directory, resolved, dataset, overwrite)
    told = _run(directory, resolved, dataset, quiet=json)
    print(json_module.dumps(told) if json else _summary(told))


def _prepare(directory: Path, resolved: Resolved, dataset: Dataset, overwrite: bool) -> None:
    """Say what the directory holds before anything is in it. Raises UsageError where it holds something else."""
    from dspark_train.data.archive import ArchiveInfo, differences, present, read_info, sample_key, write_info
    from dspark_train.store.on_disk import sample_path

    want = ArchiveInfo.of(resolved, dataset)
    have = None if overwrite else read_info(directory)
    if have and (wrong := differences(have, want)):
        raise UsageError(f"{directory} holds other hidden states: {'; '.join(wrong)}: --overwrite replaces them")
    if overwrite:
        for sample in present(directory):
            sample_path(directory, sample_key(sample)).unlink(missing_ok=True)
    write_info(directory, have or want)


def _run(directory: Path, resolved: Resolved, dataset: Dataset, quiet: bool) -> dict[str, Any]:
    from dspark_train.data.archive import present
    from dspark_train.engine.extraction import Extraction

    missing = sorted(set(range(len(dataset))) - present(directory))
    logs = directory / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    began_s = time.monotonic()
    job = Extraction(resolved, dataset, directory, logs, _narrator(len(missing), quiet))
    if missing:
        job.run(missing)
    return {
        "path": str(directory),
        "num_samples": len(dataset),
        "num_extracted": job.num_done,
        "num_tokens": job.num_tokens,
        "failed": {str(sample): reason for sample, reason in sorted(job.failed.items())},
        "took_s": round(time.monotonic() - began_s, 1),
    }


def _narrator(num_samples: int, quiet: bool) -> Any:
    """Prints a line for each tenth of the samples."""
    step = max(1, num_samples // 10)

    def say(num_done: int, num_tokens: int) -> None:
        if not quiet and (num_done % step == 0 or num_done == num_samples):
            print(f"{num_done:,} of {num_samples:,} samples, {num_tokens:,} tokens", flush=True)

    if not quiet and num_samples:
        print(f"{num_samples:,} samples are to be extracted; starting the engines", flush=True)
    return say


def _summary(told: dict[str, Any]) -> str:
    done, total = told["num_extracted"], told["num_samples"]
    lines = [f"{told['path']} holds the hidden states of {total - len(told['failed']):,} of {total:,} samples"]
    if done:
        lines.append(f"{done:,} of them extracted now: {told['num_tokens']:,} tokens in {told['took_s']:g} s")
    lines += [f"sample {sample} could not be extracted: {reason}" for sample, reason in told["failed"].items()]
    return "\n".join(lines)
