"""The ledger's settings, and what it tells of a sample that it gave up. Pure data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LedgerRule:
    """The ledger's settings."""

    key_prefix: str
    """See `leases.key_prefix`."""
    lease_s: float
    max_attempts: int
    max_failed_frac: float
    high_mark_frac: float
    max_units_ahead: int = 128
    """Units open at once. Bytes are the bound in practice; this ends the search where a segment gets no samples."""
    ranks_release: bool = False
    """Whether ranks release samples as they read them, so that a validation round may be larger than the store."""


@dataclass(frozen=True, slots=True)
class FailedSample:
    """A sample given up: it is masked where it lies in its pack."""

    sample: int
    unit: int
    reason: str
