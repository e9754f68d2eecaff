"""Measured rates as the profile of a topology: of `bench pipeline`, and of a run that the balance has watched."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from dspark_train import __version__
from dspark_train.balance.replay import last_rates
from dspark_train.cluster.machine_checks import list_gpus
from dspark_train.errors import UsageError
from dspark_train.plan.profile import VERSION, Host, Profile, subject_of
from dspark_train.report.provenance import versions
from dspark_train.topology.resolve import Resolved

CPUS = Path("/proc/cpuinfo")


def of_pipeline(figures: Mapping[str, Any], resolved: Resolved) -> Profile:
    """From what `pipeline.measure` tells: its medians. resolved: what was measured."""
    num_rounds = len(figures["rounds"])
    return Profile(
        version=VERSION,
        measured_at=datetime.now(UTC).replace(microsecond=0),
        measured_by=f"bench pipeline ({num_rounds} round{'s'[: num_rounds > 1]})",
        host=this_host(),
        subject=subject_of(resolved),
        engine_tokens_per_s=figures["engine_alone_tokens_per_s"],
        rank_tokens_per_s=figures["trainer_alone_tokens_per_s"],
        rank_packs=resolved.topology.data.step_packs,
    )


def of_run(name: str, lines: Iterable[str], resolved: Resolved) -> Profile:
    """From the journal of a run: the last rates that its balance knew. Raises UsageError where it knew none."""
    seen = last_rates(json.loads(line) for line in lines if '"balance.' in line)
    if seen is None:
        raise UsageError(
            f"the balance of run {name} knows no rates: it must watch (balance.mode advise or auto) until an engine "
            "and the ranks have worked through a few windows"
        )
    return Profile(
        version=VERSION,
        measured_at=datetime.fromisoformat(seen.at),
        measured_by=f"run {name}",
        host=this_host(),
        subject=subject_of(resolved),
        engine_tokens_per_s=median(seen.engines),
        rank_tokens_per_s=seen.rank,
        rank_packs=-(-seen.step_packs // seen.num_ranks),
        link_bytes_per_s=seen.link and resolved.bytes_per_token and seen.link * resolved.bytes_per_token,
    )


def this_host() -> Host:
    """The machine of this process, and what is installed on it."""
    return Host(
        cpu=_cpu(),
        num_cpus=len(os.sched_getaffinity(0)),
        gpus=tuple(list_gpus()),
        versions={"dspark-train": __version__, **versions()},
    )


def _cpu() -> str:
    try:
        lines = CPUS.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()
