"""What `eval` is about: an export directory, or a run's checkpoint, exported beside the run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dspark_train.cli.runs import find_run, is_run
from dspark_train.data.draft import check_pair, read_draft_facts
from dspark_train.data.target import read_target_facts
from dspark_train.errors import UsageError
from dspark_train.plan.run_layout import RunLayout
from dspark_train.topology.resolve import Resolved

CONFIG = "config.json"


@dataclass(frozen=True)
class Subject:
    """A draft on disk. run: None where a directory was named. step: of its checkpoint, None where nobody knows."""

    draft: Path
    algorithm: str
    target: str
    num_tokens: int
    trust_remote_code: bool
    run: RunLayout | None = None
    step: int | None = None


def find_subject(
    what: str | None, target: str | None, step: int | None, *, trust_remote_code: bool, other_target: bool = False
) -> Subject:
    """Raises UsageError (RunNotFound) where there is no such draft, CheckpointError where it does not load,
    PairingError where it does not belong to the target, other_target: unless by its weights alone.
    """
    directory = Path(what) if what else None
    if directory is not None and (directory / CONFIG).is_file() and not is_run(directory):
        if step is not None:
            raise UsageError(f"{directory} is an export, which has one step only: --step is for runs")
        return described(directory.absolute(), target, trust_remote_code=trust_remote_code, other_target=other_target)
    layout = find_run(what)
    from dspark_train.trainer.export import export_checkpoint

    resolved = Resolved.model_validate_json(layout.resolved.read_text(encoding="utf-8"))
    out = layout.evaluations / "draft"
    out.parent.mkdir(exist_ok=True)
    exported = export_checkpoint(resolved, layout.checkpoints, out, step, other_target=other_target)
    trust = trust_remote_code or resolved.topology.target.trust_remote_code
    found = described(out, target, trust_remote_code=trust, other_target=other_target)
    return Subject(**{**vars(found), "run": layout, "step": exported.step})


def described(directory: Path, target: str | None, *, trust_remote_code: bool, other_target: bool = False) -> Subject:
    """What an export's own config says. Raises UsageError where it is none of speculators', PairingError."""
    config: Mapping[str, Any] = json.loads((directory / CONFIG).read_text(encoding="utf-8"))
    try:
        served = config["speculators_config"]
        subject = Subject(
            draft=directory,
            algorithm=str(config["speculators_model_type"]),
            target=target or str(served["verifier"]["name_or_path"]),
            num_tokens=int(served["proposal_methods"][0]["speculative_tokens"]),
            trust_remote_code=trust_remote_code,
        )
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise UsageError(f"{directory / CONFIG} is not of a draft in speculators' format: {error!r}") from error
    facts = read_draft_facts(str(directory))
    assert facts is not None
    check_pair(facts, read_target_facts(subject.target), subject.target, other_target=other_target)
    return subject
