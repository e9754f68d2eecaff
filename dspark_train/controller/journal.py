"""The journal of a run, `events.jsonl`: one JSON object a line, append-only. Owns the file's format, and nothing else.

A line is ``{"at": ISO-8601 UTC with milliseconds, "kind": "engine.ready", "who": "engine-1.0", "text": ..., ...}``.
Each line is one write, so that several processes may append to one journal and a crash tears at most the last line.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

POLL_S = 0.2
"""How often `follow` looks for new lines."""


class Journal:
    """Appends to one journal. Thread-safe. The line is with the operating system when `write` returns."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        path.parent.mkdir(parents=True, exist_ok=True)
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        if _is_torn(path):
            os.write(self._fd, b"\n")
            self.write("journal.torn", "journal", "a crash cut the line before this one off; it is skipped by readers")

    def write(self, kind: str, who: str, text: str, **data: Any) -> None:
        """Append one event. data: JSON values; anything else is written as its text. Raises OSError (a full disk)."""
        at = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        line = json.dumps({"at": at, "kind": kind, "who": who, "text": text, **data}, default=str) + "\n"
        with self._lock:
            os.write(self._fd, line.encode())

    def close(self) -> None:
        """Close the file; twice is fine."""
        with self._lock:
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1


def _is_torn(path: Path) -> bool:
    with path.open("rb") as file:
        if file.seek(0, os.SEEK_END) == 0:
            return False
        file.seek(-1, os.SEEK_END)
        return file.read(1) != b"\n"


def read(path: Path) -> list[dict[str, Any]]:
    """All whole events of a journal, in order; [] where there is no journal yet. A torn line is left out."""
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return []
    return [event for line in lines if (event := _parse(line)) is not None]


def follow(path: Path, is_over: Callable[[], bool], poll_s: float = POLL_S) -> Iterator[dict[str, Any]]:
    """Yield the events of a journal, and new ones as they come, until ``is_over()`` and everything is yielded."""
    offset, rest = 0, b""
    while True:
        over = is_over()  # before reading, so that what was written up to then is still yielded
        if path.exists():
            with path.open("rb") as file:
                file.seek(offset)
                chunk = file.read()
            offset += len(chunk)
            *lines, rest = (rest + chunk).split(b"\n")
            yield from (event for line in lines if (event := _parse(line)) is not None)
        if over:
            return
        time.sleep(poll_s)


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        event = json.loads(line)
    except ValueError:
        return None
    return event if isinstance(event, dict) else None
