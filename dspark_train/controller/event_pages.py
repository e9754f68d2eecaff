"""The journal in pages, and as a stream that can be taken up again: what `GET /v1/events` reads.

An event's id is where its line ends in `events.jsonl`, in bytes: one can go on from it without reading what came
before, also from a controller that was started anew. No answer is longer than `PAGE_BYTES` and a line.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PAGE_BYTES = 1 << 18
POLL_S = 0.3
"""How often a stream looks for new events."""
HEARTBEAT_S = 15.0
"""A stream says something at least so often, so that whoever is between does not cut it."""


@dataclass(frozen=True, slots=True)
class Page:
    """Some events in order, each with its "id". next_id: go on after it. has_more: there were more."""

    events: list[dict[str, Any]]
    next_id: int
    has_more: bool


def after(path: Path, ident: int, num_max: int) -> Page:
    """Up to ``num_max`` events after that id. One that is no line's end counts as the next end after it."""
    size_bytes = _size(path)
    start, lines = _lines(path, ident, size_bytes)
    position = start
    events: list[dict[str, Any]] = []
    for line in lines:
        if len(events) >= num_max:
            break
        position += len(line) + 1
        events += _told(line, position)
    return Page(events, position, has_more=start < position < size_bytes)


def last(path: Path, num_max: int) -> Page:
    """The newest ``num_max`` events, as far as they fit into a page. No others are parsed: a journal may be long."""
    size_bytes = _size(path)
    start, lines = _lines(path, max(0, size_bytes - PAGE_BYTES), size_bytes)
    next_id = position = start + sum(len(line) + 1 for line in lines)
    events: list[dict[str, Any]] = []
    for line in reversed(lines):
        if len(events) >= num_max:
            break
        events += _told(line, position)
        position -= len(line) + 1
    return Page(events[::-1], next_id, False)


async def stream(path: Path, ident: int, poll_s: float = POLL_S) -> AsyncIterator[str]:
    """Server-sent events from that id on, for ever: "id", "event: journal" and the event as JSON."""
    silent_s = 0.0
    yield "retry: 2000\n\n"
    while True:
        page = after(path, ident, num_max=200)
        for event in page.events:
            yield f"id: {event['id']}\nevent: journal\ndata: {json.dumps(event)}\n\n"
        silent_s = 0.0 if page.events else silent_s + poll_s
        ident = page.next_id
        if silent_s >= HEARTBEAT_S:
            silent_s = 0.0
            yield ": still here\n\n"
        if not page.has_more:
            await asyncio.sleep(poll_s)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _lines(path: Path, ident: int, size_bytes: int) -> tuple[int, list[bytes]]:
    """Where the first whole line after that id begins, and the lines of a page from there on, without their ends."""
    start = min(max(ident, 0), size_bytes)
    if size_bytes == 0:
        return start, []
    with path.open("rb") as file:
        if start > 0:
            file.seek(start - 1)
            if file.read(1) != b"\n":
                file.readline()
            start = file.tell()
        chunk = file.read(PAGE_BYTES)
        if b"\n" not in chunk:
            chunk += file.readline()
    return start, chunk.split(b"\n")[:-1]


def _told(line: bytes, position: int) -> list[dict[str, Any]]:
    """The event of a line that ends there; none of one that was torn by a crash."""
    try:
        event = json.loads(line)
    except ValueError:
        return []
    return [{"id": position, **event}] if isinstance(event, dict) else []
