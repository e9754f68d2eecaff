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
    start = min(max(ident, 0), size_bytes)
    if size_bytes == 0:
        return Page([], start, False)
    with path.open("rb") as file:
        if start > 0:
            file.seek(start - 1)
            if file.read(1) != b"\n":
                file.readline()
            start = file.tell()
        chunk = file.read(PAGE_BYTES)
        if b"\n" not in chunk:
            chunk += file.readline()
    return _page(chunk, start, num_max, size_bytes)


def last(path: Path, num_max: int) -> Page:
    """The newest ``num_max`` events, as far as they fit into a page."""
    size_bytes = _size(path)
    page = after(path, max(0, size_bytes - PAGE_BYTES), num_max=PAGE_BYTES)
    kept = page.events[-num_max:] if num_max else []
    return Page(kept, page.next_id, False)


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


def _page(chunk: bytes, start: int, num_max: int, size_bytes: int) -> Page:
    events: list[dict[str, Any]] = []
    position = start
    for line in chunk.splitlines(keepends=True):
        if not line.endswith(b"\n") or len(events) >= num_max:
            break
        position += len(line)
        try:
            event = json.loads(line)
        except ValueError:
            continue  # torn by a crash
        if isinstance(event, dict):
            events.append({"id": position, **event})
    has_more = position < size_bytes and position > start
    return Page(events, position, has_more)
