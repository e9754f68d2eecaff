"""The marker that stands in the store for a sample that could not be put: why, in bytes of a fixed number. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Literal, get_args

from dspark_train.errors import StoreError, StoreFull
from dspark_train.store.statuses import SegmentLost

MARKER_BYTES = 512
"""Known beforehand, so that a reader needs no look at the object's size."""


Kind = Literal["full", "unreachable", "fault", "wrong"]
"""full: the store had no room, nothing is broken. unreachable: the segment's owner takes nothing. fault: the put
failed. wrong: the hidden states are of no use."""


@dataclass(frozen=True, slots=True)
class Marker:
    """Why there is no sample."""

    kind: Kind
    text: str

    def encode(self) -> bytes:
        """MARKER_BYTES of JSON, the text cut to fit."""
        text = self.text.encode("ascii", "replace").decode()
        while len(data := json.dumps({"kind": self.kind, "error": text}).encode()) > MARKER_BYTES:
            text = text[: len(text) - (len(data) - MARKER_BYTES)]
        return data.ljust(MARKER_BYTES)

    @classmethod
    def decode(cls, data: bytes) -> Marker:
        """What `encode` made. Unreadable bytes give a fault that says so."""
        try:
            fields = json.loads(data)
            return cls(fields["kind"] if fields["kind"] in get_args(Kind) else "fault", str(fields["error"]))
        except (ValueError, KeyError, TypeError):
            return cls("fault", f"an unreadable error marker: {data[:40]!r}")


def kind_of(error: BaseException | None) -> Kind:
    """The kind of marker for what kept a sample from being put: what is not the store's fault is the sample's."""
    if isinstance(error, StoreFull | SegmentLost):
        return "full" if isinstance(error, StoreFull) else "unreachable"
    return "fault" if isinstance(error, StoreError) else "wrong"


def marker_key(key: str) -> str:
    """Key of the marker for the sample ``key``."""
    return f"{key}:error"
