"""Mooncake's status codes as words and as our errors. Source: ErrorCode in mooncake-store/include/types.h, 0.3.13."""

from __future__ import annotations

from dspark_train.errors import SampleMissing, StoreError, StoreFull


class SegmentLost(StoreError):
    """The owner of a segment does not take what is put into it."""


FULL = -200
BAD_RANGE = -600
NOT_FOUND = -704
TRANSFER_FAILED = -800
RPC_FAILED = -900
RPC_TIMED_OUT = -901
NOT_IN_SERVICE = -1010
STATUS = {
    -1: "internal error",
    -10: "buffer overflow",
    -101: "segment not found",
    -102: "segment exists already",
    FULL: "no segment has room for the object",
    -400: "invalid key",
    -500: "write failed",
    BAD_RANGE: "range outside the object, buffer not registered, or object larger than the client's buffer",
    -601: "client unknown to the master",
    -700: "invalid write",
    -701: "invalid read",
    -702: "invalid replica",
    -703: "put begun and not ended",
    NOT_FOUND: "object not found",
    -705: "object exists already",
    -706: "object is leased to a reader",
    -707: "lease expired during the transfer",
    -708: "object is being replicated",
    -712: "the owner of the object's segment is gone",
    TRANSFER_FAILED: "transfer failed",
    RPC_FAILED: "the master does not answer",
    RPC_TIMED_OUT: "the master did not answer in time",
    NOT_IN_SERVICE: "the master is not in service",
}
PASSING = frozenset((FULL, TRANSFER_FAILED, RPC_FAILED, RPC_TIMED_OUT, NOT_IN_SERVICE))
"""What may be gone at the next try."""


def describe_status(status: int) -> str:
    """A status as words, number included."""
    return f"{STATUS.get(status, 'unknown status')} ({status})"


def status_error(operation: str, key: str, status: int) -> StoreError:
    """The error for a failed operation: StoreFull, SampleMissing or StoreError, naming the key and the status."""
    kind = {FULL: StoreFull, NOT_FOUND: SampleMissing, -712: SampleMissing}.get(status, StoreError)
    return kind(f"{operation} {key}: {describe_status(status)}")
