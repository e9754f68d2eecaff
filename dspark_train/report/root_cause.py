"""The first real cause of a failure, not the avalanche after it: "root cause: engine-1.0: out of memory".

The journal says who failed first; that member's log says why. Reads the ends of logs only.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from dspark_train.report.log_tail import last_lines

BURST_GAP_S = 120.0
"""Failures that are closer to each other than this belong together."""
NUM_SEARCHED_LINES = 400
MAX_LOG_BYTES = 1 << 18
_BAD = re.compile(r"\.(dead|failed|given_up)$")
_MEMBER = re.compile(r"\b(?:engine-\d+(?:\.\d+)?|rank-\d+|ledger|master)\b")


def root_cause(
    events: Sequence[Mapping[str, Any]], logs: Mapping[str, Path], telling_line: Callable[[Sequence[str]], str]
) -> str:
    """Who failed first and why, in a line; "" where nothing failed.

    logs: member -> its log. telling_line: the line of a log that says why its process ended, "" where none does.
    """
    first = _first_of_the_last_burst([event for event in events if _BAD.search(str(event.get("kind", "")))])
    if first is None:
        return ""
    text = str(first.get("text", ""))
    who = str(first.get("who", ""))
    if who not in logs and (named := _MEMBER.search(text)):
        who = named.group(0)
    path = logs.get(who) or next((logs[name] for name in logs if name.startswith(f"{who}.")), None)
    told = telling_line(last_lines(path, NUM_SEARCHED_LINES, MAX_LOG_BYTES)) if path is not None else ""
    why = told or text.splitlines()[0] if text else told
    return why if why.startswith(who.partition(".")[0]) else f"{who}: {why}"


def _first_of_the_last_burst(bad: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    first = None
    for event in reversed(bad):
        if first is not None and _at_s(first) - _at_s(event) > BURST_GAP_S:
            break
        first = event
    return first


def _at_s(event: Mapping[str, Any]) -> float:
    try:
        return datetime.fromisoformat(str(event.get("at", ""))).timestamp()
    except ValueError:
        return 0.0
