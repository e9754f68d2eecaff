"""The ends of log files, read without reading the files: logs can be large. Owns the way from a name to a file."""

from __future__ import annotations

from pathlib import Path

READ_BLOCK_BYTES = 1 << 16


def log_paths(logs: Path) -> dict[str, Path]:
    """Component -> its log, by name; {} where there are none yet."""
    return {path.stem: path for path in sorted(logs.glob("*.log"))} if logs.is_dir() else {}


def last_lines(path: Path, num_lines: int, max_bytes: int | None = None) -> list[str]:
    """The last lines of a log; only those within its last ``max_bytes``, where that is given.

    Where it was rotated just now, the rotated one has the lines before.
    """
    lines = _last_lines(path, num_lines, max_bytes)
    rotated = path.with_name(f"{path.name}.1")
    if max_bytes is None and len(lines) < num_lines and rotated.is_file():
        return _last_lines(rotated, num_lines - len(lines), None) + lines
    return lines


def _last_lines(path: Path, num_lines: int, max_bytes: int | None) -> list[str]:
    if num_lines == 0:
        return []
    with path.open("rb") as file:
        position = file.seek(0, 2)
        limit = 0 if max_bytes is None else max(0, position - max_bytes)
        tail = b""
        while position > limit and tail.count(b"\n") <= num_lines:
            step = min(READ_BLOCK_BYTES, position - limit)
            position = file.seek(position - step)
            tail = file.read(step) + tail
    return tail.decode(errors="replace").splitlines()[-num_lines:]
