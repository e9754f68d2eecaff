"""`dspark-train export`: the trained draft as a Hugging Face directory with a model card, checked by who loads it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dspark_train.cli.runs import find_run
from dspark_train.errors import DataError, Problem, UsageError
from dspark_train.plan.run_layout import RunLayout
from dspark_train.topology.resolve import Resolved

if TYPE_CHECKING:
    from dspark_train.engine.vllm_check import Checked
    from dspark_train.trainer.export import Exported


def command(
    run: Annotated[str | None, typer.Argument(help="Name or directory of the run; the newest if left out.")] = None,
    out: Annotated[Path | None, typer.Option("--out", help="Directory to write; RUN/export if left out.")] = None,
    step: Annotated[int | None, typer.Option("--step", help="Checkpoint to export; the newest if left out.")] = None,
    evaluation: Annotated[
        Path | None,
        typer.Option("--eval", help="What `eval --json` printed, for the card; what `eval RUN` kept if left out."),
    ] = None,
    target_id: Annotated[
        str | None,
        typer.Option("--target-id", help="Name of the target on its hub, to be written instead of its path."),
    ] = None,
    other_target: Annotated[
        bool, typer.Option("--other-target", help="Allow that the target's weights are not those trained with.")
    ] = False,
    vllm: Annotated[bool, typer.Option("--vllm/--no-vllm", help="Have vLLM load it as well (a minute).")] = False,
    push: Annotated[
        str | None, typer.Option("--push-to-hub", help="OWNER/NAME: show what would be uploaded there; see --confirm.")
    ] = None,
    confirm: Annotated[bool, typer.Option("--confirm", help="With --push-to-hub: really upload.")] = False,
    private: Annotated[bool, typer.Option("--private", help="With --push-to-hub: make a private repository.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Write a run's draft as a Hugging Face directory with a model card, and load it back to see that it is whole.

    Example: dspark-train export a1 --out drafts/a1
    Example: dspark-train export a1 --target-id Qwen/Qwen3-8B --push-to-hub me/qwen3-8b-dspark

    speculators loads it back and every weight is compared. With --vllm, vLLM reads its config beside the target's and
    its weights into its own model class. Nothing is uploaded without --confirm.
    """
    if confirm and push is None:
        raise UsageError("--confirm is for --push-to-hub OWNER/NAME")
    layout = find_run(run)
    resolved = Resolved.model_validate_json(layout.resolved.read_text(encoding="utf-8"))
    given = read_evaluation(evaluation) if evaluation else None
    layout.logs.mkdir(exist_ok=True)
    with _quiet(layout):
        from dspark_train.trainer.export import export_checkpoint

        exported = export_checkpoint(
            resolved, layout.checkpoints, (out or layout.export).absolute(), step, other_target=other_target
        )
    directory = Path(exported.path)
    measured = given or kept_evaluation(layout, exported.step)
    write_card(layout, resolved, exported, measured, push or layout.name, target_id)
    checked = _check(directory, resolved, layout) if vllm else None
    if as_json:
        found = asdict(exported) | {"vllm": asdict(checked) if checked else None}
        typer.echo(json.dumps(found | ({"upload": _upload(directory, push, confirm, private)} if push else {})))
        return
    for text in exported.rejected:
        typer.echo(f"a newer checkpoint was not used: {text}", err=True)
    typer.echo(describe(exported, checked))
    if push:
        for line in upload_lines(_upload(directory, push, confirm, private)):
            typer.echo(line)


def write_card(
    layout: RunLayout,
    resolved: Resolved,
    exported: Exported,
    evaluation: Mapping[str, Any] | None,
    name: str,
    target_id: str | None,
) -> None:
    """Write the model card, the provenance, and (target_id) the target's public name into an export."""
    from dspark_train.controller import journal
    from dspark_train.data.draft import PROVENANCE, read_draft_facts
    from dspark_train.report.model_card import CARD, model_card
    from dspark_train.report.provenance import provenance
    from dspark_train.report.story import read_story

    directory = Path(exported.path)
    story = read_story(layout, journal.read(layout.events) if layout.events.exists() else [])
    told = provenance(layout, resolved, story, exported.step or 0, evaluation)
    if target_id:
        told["target"] = target_id
        _name_target(directory / "config.json", target_id)
    facts = read_draft_facts(str(directory))
    assert facts is not None
    (directory / PROVENANCE).write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    size = {"num_weights": exported.num_weights, "dtype": exported.dtype}
    (directory / CARD).write_text(model_card(told, facts, name, size), encoding="utf-8")


def verify_export(directory: Path) -> Exported:
    """Load an export as speculators does and check its weights. Raises CheckpointError."""
    from dspark_train.trainer.export import verify_export

    return verify_export(directory)


def describe(exported: Exported, checked: Checked | None = None) -> str:
    """What was written, where, what loaded it, and how it is used."""
    size_mb = exported.num_bytes / 1e6
    by_vllm = f" {checked.text}." if checked else ""
    return (
        f"{exported.path}: {exported.algorithm} draft of step {exported.step} for {exported.target}, "
        f"{exported.num_weights / 1e6:.1f} M weights in {exported.dtype}, {size_mb:.0f} MB; it loads back.{by_vllm}\n"
        f"It drafts up to {exported.num_speculative_tokens} tokens at a time. "
        f"Serve it with its target: dspark-train serve {exported.path}"
    )


def upload_lines(plan: Mapping[str, Any]) -> Iterator[str]:
    """What was uploaded, or would be."""
    total_mb = sum(plan["files"].values()) / 1e6
    if plan["uploaded"]:
        yield f"uploaded {len(plan['files'])} files, {total_mb:.0f} MB: {plan['url']}"
        return
    yield f"would upload {len(plan['files'])} files, {total_mb:.0f} MB, to {plan['repository']}:"
    for name, size in plan["files"].items():
        yield f"  {name} ({size:,} bytes)"
    yield "nothing was uploaded: give --confirm to do it"


def _upload(directory: Path, repository: str, confirm: bool, private: bool) -> dict[str, Any]:
    from dspark_train.data.hub import upload

    return upload(directory, repository, confirm=confirm, private=private)


def _check(directory: Path, resolved: Resolved, layout: RunLayout) -> Checked:
    from dspark_train.engine.vllm_check import check

    return check(directory, resolved, layout.log("export"))


def kept_evaluation(layout: RunLayout, step: int | None) -> dict[str, Any] | None:
    """What `eval` measured last of the run's checkpoint of that step; None where it measured none."""
    kept = sorted(layout.evaluations.glob("*.json"), key=lambda path: path.stat().st_mtime, reverse=True)
    found = (read_evaluation(path) for path in kept)
    return next((one for one in found if one.get("step") == step), None)


def read_evaluation(path: Path) -> dict[str, Any]:
    """Raises DataError where the file is not what `eval --json` prints."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if found["macro_accept_len"] is None or not found["domains"] or not found["method"]:
            raise KeyError
    except (OSError, ValueError, KeyError, TypeError) as error:
        problem = Problem(str(path), 0, "", "is not what `dspark-train eval --json` prints", "make it again")
        raise DataError([problem]) from error
    return dict(found)


def _name_target(path: Path, target: str) -> None:
    config = json.loads(path.read_text(encoding="utf-8"))
    config["speculators_config"]["verifier"]["name_or_path"] = target
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")


@contextlib.contextmanager
def _quiet(layout: RunLayout) -> Iterator[None]:
    """The libraries below print as they please; what they say is kept, with the run's other logs."""
    with (
        layout.log("export").open("a", encoding="utf-8") as log,
        contextlib.redirect_stdout(log),
        contextlib.redirect_stderr(log),
    ):
        yield
