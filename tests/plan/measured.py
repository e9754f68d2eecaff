"""A profile as `bench` would write it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from dspark_train.plan.profile import VERSION, Host, Profile, subject_of
from dspark_train.topology.resolve import Resolved

AT = datetime(2026, 11, 30, 12, tzinfo=UTC)


def profile(resolved: Resolved, **changes: Any) -> Profile:
    """Rates of this topology: 3,000 tokens/s of an engine, 1,000 of a rank, unless changed."""
    values = {
        "version": VERSION,
        "measured_at": AT,
        "measured_by": "bench pipeline (3 rounds)",
        "host": Host(cpu="AMD EPYC", num_cpus=2, versions={"torch": "2.9"}),
        "subject": subject_of(resolved),
        "engine_tokens_per_s": 3000.0,
        "rank_tokens_per_s": 1000.0,
        "rank_packs": resolved.topology.data.step_packs,
    }
    return Profile(**{**values, **changes})
