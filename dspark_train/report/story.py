"""What happened in a run, from its own files: how it was scaled and why, what time was lost to what, what came out.

Facts only; `document.py` gives them a form. Works while the run goes on, and when all of it is dead.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from dspark_train.evaluate.sweep import Sweep
from dspark_train.plan.run_layout import RunLayout
from dspark_train.report import state_file
from dspark_train.report.history import History
from dspark_train.report.state import RunState

Event = Mapping[str, Any]
Line = Mapping[str, Any]
BEGINS, FLOWS = "run.starting", "run.flowing"
ENDS = re.compile(r"^run\.(done|stopped|failed)$")
FAULTS = re.compile(r"\.(dead|failed|given_up|rejected|rolled_back|rewound)$")
BREAKS = {"rank.dead", "rank.failed", "ledger.dead", "store.dead"}
"""What training stands still for."""
MENDED = {"group.formed", "ledger.replaced", "store.replaced"}
LOOKS = "balance.seen"
ORDERED_WITHIN_S = 5.0
"""A transaction that begins so soon after the balance decided on a move is that move."""
_POSITION = re.compile(r"^position_(\d+)_acc$")


@dataclass(frozen=True)
class Change:
    """One transaction. why: what the balance said, or that it was by hand. took_s: to its end, None while it runs."""

    at: str
    ident: str
    text: str
    why: str
    outcome: str
    took_s: float | None
    pause_s: float | None


@dataclass(frozen=True)
class Lost:
    """Where the run's time went. wall_s is the sum of the others; busy_s: training, nothing lost."""

    wall_s: float
    busy_s: float
    starting_s: float
    waiting_s: float
    pausing_s: float
    mending_s: float
    other_s: float


@dataclass(frozen=True)
class Story:
    """All that the report tells. steps, rounds: the lines of metrics.jsonl and validation.jsonl."""

    state: RunState
    events: Sequence[Event]
    steps: Sequence[Line]
    rounds: Sequence[Line]
    history: History
    changes: Sequence[Change]
    decisions: Sequence[Event]
    faults: Sequence[Event]
    lost: Lost
    began_at: str
    ended_at: str
    serving: Sweep | None = None
    evaluation: Mapping[str, Any] | None = None
    """The newest that `eval` measured, as it printed it."""

    @property
    def domains(self) -> list[tuple[str, float | None, float | None, int]]:
        """(domain, acceptance length by the first method, served beside it where both were asked, tokens)."""
        found = self.evaluation or {}
        served = found.get("served", {}).get("domains", {})
        return [
            (name, row["accept_len"], served.get(name, {}).get("accept_len"), row["num_tokens"])
            for name, row in found.get("domains", {}).items()
        ]

    @property
    def num_tokens(self) -> int:
        return sum(int(step.get("tokens") or 0) for step in self.steps)

    @property
    def acceptance(self) -> list[tuple[int, float | None, float]]:
        """(position, at the first validation, at the last): the share of drafted tokens that are right there."""
        if not self.rounds:
            return []
        first, last = self.rounds[0], self.rounds[-1]
        found = sorted((int(m[1]), key) for key in last if (m := _POSITION.match(key)) and last[key] is not None)
        return [(place, first.get(key) if len(self.rounds) > 1 else None, float(last[key])) for place, key in found]


def read_story(layout: RunLayout, events: Sequence[Event]) -> Story | None:
    """The story of a run; None where there is no state yet. events: its journal."""
    state = state_file.current(layout)
    if state is None:
        return None
    steps = _lines(layout.metrics)
    return Story(
        state=state,
        events=events,
        steps=steps,
        rounds=_lines(layout.validation),
        history=_history(layout.history),
        changes=_changes(events),
        decisions=[event for event in events if _is_decision(event)],
        faults=[event for event in events if FAULTS.search(str(event.get("kind", "")))],
        lost=time_lost(events, steps),
        began_at=str(events[0].get("at", "")) if events else "",
        ended_at=str(events[-1].get("at", "")) if events else "",
        serving=_serving(layout.serving),
        evaluation=_evaluation(layout.evaluations),
    )


def time_lost(events: Sequence[Event], steps: Sequence[Line]) -> Lost:
    """Where the time of the run's lives went. What is not accounted for (checkpoints, validation) is "other"."""
    wall_s = starting_s = mending_s = 0.0
    begun_s = broken_s = None
    for index, event in enumerate(events):
        kind, now_s = str(event.get("kind", "")), _at_s(event)
        is_last = index == len(events) - 1
        if kind == BEGINS or begun_s is None:
            begun_s, life_s = now_s, now_s
        elif kind == FLOWS:
            starting_s += now_s - begun_s
        if kind in BREAKS and broken_s is None:
            broken_s = now_s
        elif kind in MENDED and broken_s is not None:
            mending_s += now_s - broken_s
            broken_s = None
        if ENDS.match(kind) or is_last:
            wall_s += now_s - life_s
            broken_s, begun_s = None, None
    pausing_s = sum(float(event.get("pause_s") or 0) for event in events if event.get("kind") == "group.formed")
    step_s = sum(float(step.get("step_s") or 0) for step in steps)
    waiting_s = sum(float(step.get("wait_s") or 0) for step in steps)
    known_s = starting_s + step_s + pausing_s + mending_s
    return Lost(
        wall_s=wall_s,
        busy_s=step_s - waiting_s,
        starting_s=starting_s,
        waiting_s=waiting_s,
        pausing_s=pausing_s,
        mending_s=mending_s,
        other_s=max(0.0, wall_s - known_s),
    )


def _changes(events: Sequence[Event]) -> list[Change]:
    begun: dict[str, Event] = {}
    made: dict[str, Change] = {}
    move: Event | None = None
    for event in events:
        ident, kind = str(event.get("id", "")), str(event.get("kind", ""))
        if kind == LOOKS and str(event.get("text", "")).startswith("move "):
            move = event
        if kind == "scale.begun":
            begun[ident] = event
            text = str(event.get("text", "")).partition(": ")[2]
            is_moved = move is not None and _at_s(event) - _at_s(move) < ORDERED_WITHIN_S
            why = str(move.get("text", "")) if is_moved and move is not None else "by hand"
            made[ident] = Change(str(event.get("at", "")), ident, text, why, "under way", None, None)
        elif kind in ("scale.done", "scale.rolled_back") and ident in begun:
            start = begun[ident]
            outcome = "done" if kind == "scale.done" else str(event.get("text", "")).split("rolled back", 1)[-1]
            made[ident] = Change(
                at=made[ident].at,
                ident=ident,
                text=made[ident].text,
                why=made[ident].why,
                outcome=outcome if outcome == "done" else f"rolled back{outcome}",
                took_s=_at_s(event) - _at_s(start),
                pause_s=event.get("pause_s"),
            )
    return list(made.values())


def _is_decision(event: Event) -> bool:
    """A change of the mode, or what the balance did or would have done; not each time that it held."""
    kind, text = str(event.get("kind", "")), str(event.get("text", ""))
    if kind == LOOKS:
        return not text.startswith("hold ")
    return kind.startswith("rebalance.") or kind == "balance.refused"


def _at_s(event: Event) -> float:
    return datetime.fromisoformat(str(event["at"])).timestamp()


def _history(path: Path) -> History:
    try:
        return History.from_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return History()  # a run of before there was one; the report goes without


def _serving(path: Path) -> Sweep | None:
    """What `bench serving` measured of the run's draft; None where it did not, or as another version of it wrote it."""
    try:
        return Sweep.model_validate_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _evaluation(directory: Path) -> Mapping[str, Any] | None:
    kept = sorted(directory.glob("*.json"), key=lambda path: path.stat().st_mtime)
    try:
        found = json.loads(kept[-1].read_text(encoding="utf-8")) if kept else None
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and found.get("domains") else None


def _lines(path: Path) -> list[Line]:
    if not path.exists():
        return []
    with path.open(encoding="utf-8") as file:
        return [json.loads(line) for line in file if line.endswith("\n")]
