"""Checkpoints as files: their names, their `meta.json`, how one becomes durable, and which are there.

Standard library only, so that the controller and `status` can look without importing torch. A checkpoint is a
directory `step-00000060`; until it is whole and on disk it is called `step-00000060.partial`. `latest` is a symbolic
link to the newest whole one.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

META = "meta.json"
LATEST = "latest"
PARTIAL = ".partial"
FORMAT = 1
_PREFIX = "step-"
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class Meta:
    """What a checkpoint says of itself.

    step: optimizer steps done; unit: the schedule's next unit; config: digest of the resolved topology; files: name ->
    size and sha256 of each file beside `meta.json`; saved_at_s: Unix time. accept_len: what the validation round right
    before it came to, None where there was none.
    """

    step: int
    unit: int
    epoch: int
    config: str
    sharding: str
    world_size: int
    saved_at_s: float
    format: int = FORMAT
    files: dict[str, dict[str, Any]] = field(default_factory=dict)
    accept_len: float | None = None


@dataclass(frozen=True)
class Found:
    """A whole checkpoint in a directory; whether its files are undamaged is for `problems` to say."""

    step: int
    path: Path

    def meta(self) -> Meta:
        """Raises OSError, ValueError or TypeError where `meta.json` cannot be used."""
        return read_meta(self.path)


def step_dir(root: Path, step: int) -> Path:
    """Where the checkpoint of this step is, or will be."""
    return root / f"{_PREFIX}{step:08d}"


def partial_dir(root: Path, step: int) -> Path:
    """Where the checkpoint of this step is written."""
    return step_dir(root, step).with_name(step_dir(root, step).name + PARTIAL)


def find_latest(root: Path) -> list[Found]:
    """The whole checkpoints in ``root``, newest first; none where the directory is missing. Reads no file."""
    if not root.is_dir():
        return []
    names = [
        entry for entry in root.iterdir() if entry.name.startswith(_PREFIX) and entry.name[len(_PREFIX) :].isdigit()
    ]
    found = [Found(int(entry.name[len(_PREFIX) :]), entry) for entry in names if entry.is_dir()]
    return sorted(found, key=lambda checkpoint: -checkpoint.step)


def read_meta(path: Path) -> Meta:
    """Raises OSError, ValueError or TypeError where `meta.json` is missing or broken."""
    return Meta(**json.loads((path / META).read_text(encoding="utf-8")))


def problems(path: Path, contents: bool = True) -> list[str]:
    """What is wrong with a checkpoint's files, empty where nothing is.

    Sizes are always compared, sha256 where ``contents`` (about 1 s for each 0.5-2 GB).
    """
    try:
        meta = read_meta(path)
    except (OSError, ValueError, TypeError) as error:
        return [f"{path / META}: {error}"]
    if meta.format != FORMAT:
        return [f"{path / META}: format {meta.format}, this version reads {FORMAT}"]
    if not meta.files:
        return [f"{path / META}: lists no files"]
    return [text for name, wanted in sorted(meta.files.items()) if (text := _problem(path / name, wanted, contents))]


def _problem(file: Path, wanted: dict[str, Any], contents: bool) -> str:
    if not file.is_file():
        return f"{file}: is missing"
    if (size := file.stat().st_size) != wanted["size_bytes"]:
        return f"{file}: {size} bytes, not {wanted['size_bytes']}"
    if contents and sha256(file) != wanted["sha256"]:
        return f"{file}: its contents changed since it was written (sha256 differs)"
    return ""


def sha256(file: Path) -> str:
    """Hex digest of a file's bytes."""
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def publish(root: Path, meta: Meta) -> Path:
    """Make a written partial checkpoint the newest one, durably: digests, fsync, rename, `latest`.

    Every file in the partial directory belongs to it. Returns its directory. A sound checkpoint of the same step (left
    by a run that was resumed from an older one) is kept instead: it is the same by invariant 1. Raises OSError; then
    the partial one stays, and nothing else changed.
    """
    partial, final = partial_dir(root, meta.step), step_dir(root, meta.step)
    files = {}
    for file in sorted(entry for entry in partial.rglob("*") if entry.is_file() and entry.name != META):
        files[str(file.relative_to(partial))] = {"size_bytes": file.stat().st_size, "sha256": sha256(file)}
        _fsync(file)
    record = asdict(meta) | {"files": files}
    (partial / META).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    _fsync(partial / META)
    _fsync(partial)
    if final.exists() and not problems(final):
        shutil.rmtree(partial)
    else:
        shutil.rmtree(final, ignore_errors=True)
        partial.rename(final)
    _fsync(root)
    _point_latest(root, final)
    return final


def _point_latest(root: Path, final: Path) -> None:
    temporary = root / f".{LATEST}.{os.getpid()}"
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(final.name, target_is_directory=True)
    temporary.replace(root / LATEST)
    _fsync(root)


def find_best(root: Path) -> Found | None:
    """The checkpoint of the highest validated acceptance length, the newest of equals; None where none was validated.

    Damaged ones do not count; sizes are compared only.
    """
    best, best_accept_len = None, float("-inf")
    for found in find_latest(root):
        accept_len = None if problems(found.path, contents=False) else found.meta().accept_len
        if accept_len is not None and accept_len > best_accept_len:
            best, best_accept_len = found, accept_len
    return best


def prune(root: Path, keep: int, *, keep_best: bool = False) -> list[int]:
    """Remove all but the newest ``keep`` checkpoints whose sizes are right; returns the removed steps.

    Damaged ones do not count as kept, so the last good one is never removed in favour of them. keep_best: that of the
    highest validated acceptance length stays as well.
    """
    removed, good = [], 0
    best = find_best(root) if keep_best else None
    for found in find_latest(root):
        if good < max(1, keep) or found == best:
            good += not problems(found.path, contents=False)
            continue
        shutil.rmtree(found.path)
        removed.append(found.step)
    return removed


def remove_partial(root: Path) -> list[str]:
    """Remove what interrupted writes left; returns the names. Only while nobody writes."""
    if not root.is_dir():
        return []
    left = [entry for entry in root.iterdir() if entry.name.startswith(_PREFIX) and entry.name.endswith(PARTIAL)]
    for entry in left:
        shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    return [entry.name for entry in left]


def _fsync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
