"""A short digest by which one target is told from another of the same shape, read in milliseconds from its weights.

Of the norms and the beginning of the embedding: they are small, differ between trained models, and stay as they are
when the files are cut into other shards. Bytes are taken as they are, so a copy in another type is another target.
"""

from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path
from typing import Any

NUM_NORMS = 8
EMBEDDING_BYTES = 65536
_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"
_NORM = "norm.weight"
_EMBEDDINGS = ("embed_tokens.weight", "wte.weight")
_HEADER_LIMIT_BYTES = 100 << 20


def read_identity(directory: Path) -> str:
    """The digest of a model directory; "" where its weights are not here, or not in safetensors."""
    try:
        files = _files(directory)
        names = [*_chosen(sorted(name for name in files if name.endswith(_NORM)))]
        names += sorted(name for name in files if name.endswith(_EMBEDDINGS))[:1]
        digest = hashlib.sha256()
        headers: dict[Path, tuple[dict[str, Any], int]] = {}
        for name in names:
            path = files[name]
            if path not in headers:
                headers[path] = _header(path)
            digest.update(name.encode() + _beginning(path, *headers[path], name))
    except (OSError, ValueError, KeyError, TypeError, struct.error):
        return ""  # still being downloaded, or another format: it is not known, which no check holds against it
    return digest.hexdigest()[:16] if names else ""


def _files(directory: Path) -> dict[str, Path]:
    """Tensor -> the file that holds it."""
    if (directory / _INDEX).is_file():
        index = json.loads((directory / _INDEX).read_text(encoding="utf-8"))
        return {name: directory / file for name, file in index["weight_map"].items()}
    header, _ = _header(directory / _SINGLE)
    return {name: directory / _SINGLE for name in header if name != "__metadata__"}


def _chosen(names: list[str]) -> list[str]:
    """Some of them, evenly."""
    num = min(NUM_NORMS, len(names))
    return [names[place * len(names) // num] for place in range(num)]


def _header(path: Path) -> tuple[dict[str, Any], int]:
    """The header of a safetensors file, and where its data begin."""
    with path.open("rb") as file:
        (size,) = struct.unpack("<Q", file.read(8))
        if size > _HEADER_LIMIT_BYTES:
            raise ValueError(f"{path} is no safetensors file")
        return json.loads(file.read(size)), 8 + size


def _beginning(path: Path, header: dict[str, Any], start: int, name: str) -> bytes:
    first, last = header[name]["data_offsets"]
    with path.open("rb") as file:
        file.seek(start + first)
        return file.read(min(last - first, EMBEDDING_BYTES))
