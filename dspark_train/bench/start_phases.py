"""How long a run's start took, phase by phase, out of its journal. Pure: the journal's lines are passed in."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

BEGIN = "run.starting"
END = "run.flowing"
ENDS = {
    "store.ready": "store's master",
    "engine.started": "engine up",
    "rank.ready": "rank: draft built, segment mounted",
    "engine.ready": "engine probed",
    "group.formed": "trainer group formed",
    END: "samples flow",
}
"""Events that end a phase; the last of each kind counts, as a pool is up when its last member is."""


def start_phases(lines: Iterable[str]) -> dict[str, Any]:
    """{"phases": [{"phase", "at_s": since the start, "took_s": since the phase before}], "total_s"} of the last start.

    total_s is None where that start did not come to its end.
    """
    events = [json.loads(line) for line in lines if line.strip()]
    first = max((i for i, event in enumerate(events) if event["kind"] == BEGIN), default=None)
    if first is None:
        return {"phases": [], "total_s": None}
    began_s, ends_s = _at_s(events[first]), {}
    for event in events[first:]:
        if event["kind"] in ENDS:
            ends_s[event["kind"]] = _at_s(event) - began_s
        if event["kind"] == END:
            break
    phases, before_s = [], 0.0
    for kind, at_s in sorted(ends_s.items(), key=lambda end: end[1]):
        phases.append({"phase": ENDS[kind], "at_s": round(at_s, 3), "took_s": round(at_s - before_s, 3)})
        before_s = at_s
    return {"phases": phases, "total_s": ends_s.get(END)}


def _at_s(event: Mapping[str, Any]) -> float:
    return datetime.fromisoformat(event["at"]).timestamp()
