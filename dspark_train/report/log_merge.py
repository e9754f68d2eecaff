"""Several logs as one, in the order in which things happened. Pure: lines in, lines out.

Components write their times in different ways; a line without a time belongs to the one before it.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime

_ISO = re.compile(r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)(?:[.,](\d{1,6}))?(Z?)")
_GLOG = re.compile(r"^[IWEF](\d\d)(\d\d) (\d\d:\d\d:\d\d)\.(\d{6})")
SEARCHED_CHARS = 60
"""A time stands at the beginning of a line, or after a short prefix."""


def at_s(line: str, year: int) -> float | None:
    """When the line was written, Unix seconds; None where it does not say. year: for times that do not tell theirs.

    Times without a zone are this machine's.
    """
    head = line[:SEARCHED_CHARS]
    try:
        if found := _ISO.search(head):
            text = f"{found[1]}T{found[2]}.{(found[3] or '0').ljust(6, '0')}"
            made = datetime.fromisoformat(text)
            return (made.replace(tzinfo=UTC) if found[4] else made).timestamp()
        if found := _GLOG.match(head):
            return datetime.fromisoformat(f"{year}-{found[1]}-{found[2]}T{found[3]}.{found[4]}").timestamp()
    except ValueError:
        return None  # digits that are no time
    return None


def merged(logs: Mapping[str, Iterable[str]], year: int) -> Iterator[tuple[str, str]]:
    """(component, line) by time; of one component, in its own order."""
    for _, _, name, line in heapq.merge(*(_timed(name, lines, year) for name, lines in logs.items())):
        yield name, line


def _timed(name: str, lines: Iterable[str], year: int) -> Iterator[tuple[float, str, str, str]]:
    last_s = 0.0
    for number, line in enumerate(lines):
        last_s = max(last_s, at_s(line, year) or last_s)  # a clock that was set back keeps the log's own order
        yield last_s, f"{name}{number:09}", name, line
