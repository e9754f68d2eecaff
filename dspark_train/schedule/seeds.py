"""What ties a step to its data: the seed of each pack's random draws, and the hash logged with every step. Pure.

Both follow from what is trained alone, never from which rank does it, or when.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Sequence

_INT64 = struct.Struct("<q")
_TWO_INT64 = struct.Struct("<qq")


def draw_seed(seed: int, epoch: int, step: int, pack: int) -> int:
    """Seed of the random draws (anchors) of one pack of a step: 0 .. 2**63 - 1.

    pack: its index within the unit. For a validation round pass ``step=0`` and ``epoch=0``, so that every round draws
    the same and its figures can be compared.
    """
    text = f"dspark-train draw {seed} {epoch} {step} {pack}".encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:8], "little") >> 1


def pack_digest(pieces: Iterable[tuple[int, bytes]]) -> bytes:
    """SHA-256 over a pack's samples in order: 32 bytes.

    pieces: (row of the data set, its token ids as trained: int64 little-endian). Of each, the row, the number of
    tokens (both int64 little-endian) and the token ids are hashed, so that no two packs read the same.
    """
    digest = hashlib.sha256()
    for sample, token_ids in pieces:
        digest.update(_TWO_INT64.pack(sample, len(token_ids) // _INT64.size))
        digest.update(token_ids)
    return digest.digest()


def step_hash(pack_digests: Sequence[bytes]) -> str:
    """SHA-256 over the digests of a step's packs in order, as hex: ``data_hash`` of metrics.jsonl."""
    return hashlib.sha256(b"".join(pack_digests)).hexdigest()
