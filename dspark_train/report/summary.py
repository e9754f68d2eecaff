"""What came out of a run, from its own files: the lines printed at the end."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dspark_train.plan.run_layout import RunLayout
from dspark_train.report.state import RunState
from dspark_train.report.terminal import duration_text


@dataclass(frozen=True)
class Change:
    """A figure at the first and at the last validation."""

    first: float
    last: float

    @property
    def relative(self) -> float:
        """-0.25: fell by a quarter."""
        return self.last / self.first - 1 if self.first else 0.0


@dataclass(frozen=True)
class Summary:
    """A finished run in figures; None where there were not two validation rounds. train_s: wait_s is part of it."""

    steps: int
    tokens: int
    train_s: float
    wait_s: float
    loss: Change | None
    accept_len: Change | None


def summarise(layout: RunLayout) -> Summary:
    """Read `metrics.jsonl` and `validation.jsonl`."""
    steps = _lines(layout.metrics)
    rounds = _lines(layout.validation)
    return Summary(
        steps=len(steps),
        tokens=sum(int(step["tokens"]) for step in steps),
        train_s=sum(float(step["step_s"]) for step in steps),
        wait_s=sum(float(step["wait_s"]) for step in steps),
        loss=_change(rounds, "loss"),
        accept_len=_change(rounds, "accept_len"),
    )


def summary_lines(state: RunState, summary: Summary, layout: RunLayout) -> list[str]:
    """The summary for a person."""
    lines = [f"run {state.run} is {state.state} at step {state.step} of {state.total_steps}: {layout.root}"]
    if summary.steps:
        lines.append(
            f"  {summary.steps} steps, {summary.tokens:,} tokens in {duration_text(summary.train_s)} "
            f"({summary.tokens / max(summary.train_s, 1e-9):,.0f} tokens/s; "
            f"waited for data {summary.wait_s / max(summary.train_s, 1e-9):.0%})"
        )
    if summary.loss is not None:
        lines.append(
            f"  validation loss {summary.loss.first:.3f} -> {summary.loss.last:.3f} ({summary.loss.relative:+.0%})"
        )
    if summary.accept_len is not None:
        lines.append(f"  acceptance length {summary.accept_len.first:.2f} -> {summary.accept_len.last:.2f}")
    lines.append(
        f"  samples: {state.ledger.trained} trained, {state.ledger.failed} failed, "
        f"{state.ledger.regenerated} regenerated; evicted from the store: {state.store.num_evicted}"
    )
    if state.checkpoint is not None:
        lines.append(f"  checkpoint of step {state.checkpoint.step}; next: dspark-train export {state.run}")
    if layout.report.exists():
        lines.append(f"  report: {layout.report}")
    return lines


def _lines(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    with path.open(encoding="utf-8") as file:
        return [json.loads(line) for line in file if line.endswith("\n")]


def _change(rounds: list[dict[str, Any]], key: str) -> Change | None:
    values = [float(entry[key]) for entry in rounds if entry.get(key) is not None]
    return Change(values[0], values[-1]) if len(values) >= 2 else None
