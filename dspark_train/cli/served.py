"""What `serve` and `bench serving` serve: a draft with its target's options, held to each other first."""

from __future__ import annotations

from pathlib import Path

from dspark_train.cli.plan import resolve_file
from dspark_train.cli.runs import find_run, is_run, runs_dir
from dspark_train.data.draft import PROVENANCE, check_pair, read_draft_facts, read_provenance
from dspark_train.data.target import read_target_facts
from dspark_train.errors import UsageError
from dspark_train.plan.run_layout import RunLayout
from dspark_train.plan.serving import ServingOptions
from dspark_train.topology.pairing import DraftFacts
from dspark_train.topology.resolve import Resolved


class Served:
    """A draft and what it is served with. layout: of the run that it came from, None for a directory."""

    def __init__(self, options: ServingOptions, draft: DraftFacts, layout: RunLayout | None) -> None:
        self.options, self.draft, self.layout = options, draft, layout


def find_served(
    source: str | None, topology: Path | None = None, target: str | None = None, *, other_target: bool = False
) -> Served:
    """The draft of a run or of an export's directory; the newest run's where ``source`` is None.

    topology: whose options it is served with, instead of those it was trained with. target: served instead of the one
    it was trained for, such as a copy elsewhere. Raises UsageError, PairingError, DataError.
    """
    directory, layout = _find(source)
    draft = read_draft_facts(str(directory))
    assert draft is not None
    options = ServingOptions.of(resolve_file(topology, ())) if topology else carried_options(directory, layout)
    if options is None:
        raise UsageError(
            f"{directory} has no {PROVENANCE}, so it does not say how its target is served: give --topology FILE"
        )
    name = target or options.path or options.target
    facts = read_target_facts(name)
    check_pair(draft, facts, name, other_target=other_target)
    if target is not None:
        options = options.model_copy(update={"path": facts.path, "target": target})
    return Served(options, draft, layout)


def _find(source: str | None) -> tuple[Path, RunLayout | None]:
    """The draft's directory, and its run where it has one."""
    if source is not None and (Path(source) / "config.json").is_file() and not is_run(Path(source)):
        return Path(source).absolute(), None
    if source is not None and Path(source).is_dir() and not is_run(Path(source)) and not is_run(runs_dir() / source):
        raise UsageError(f"{source} is neither a run nor a draft: it holds no resolved.json and no config.json")
    layout = find_run(source)
    if not (layout.export / "config.json").is_file():
        raise UsageError(f"run {layout.name} was not exported: `dspark-train export {layout.name}` first")
    return layout.export.absolute(), layout


def carried_options(directory: Path, layout: RunLayout | None) -> ServingOptions | None:
    """What a draft's target was extracted with: of its run, or as its export carries them; None where neither is."""
    if layout is not None:
        return ServingOptions.of(Resolved.model_validate_json(layout.resolved.read_text(encoding="utf-8")))
    carried = read_provenance(directory).get("serving")
    return ServingOptions.model_validate(carried) if carried else None
