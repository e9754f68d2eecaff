"""The file of measured rates beside a topology: read where `plan` predicts, written by `bench`."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dspark_train.errors import Problem, ProfileError, UsageError
from dspark_train.plan.profile import Profile, parse, profile_path

if TYPE_CHECKING:
    from dspark_train.plan.spec import Plan
    from dspark_train.topology.resolve import Resolved


def forecast(plan: Plan, resolved: Resolved, topology: Path) -> Plan:
    """``plan`` with what the rates measured for its topology predict. Raises ProfileError."""
    path = profile_path(topology)
    remedy = f"measure anew by `dspark-train bench pipeline --topology {topology}`"
    profile = _read(path, f"{remedy}, or remove the file")
    if profile is None:
        return plan
    from dspark_train.balance.forecast import with_forecast

    return with_forecast(plan, resolved, profile, str(path), remedy)


def save_pipeline(figures: Mapping[str, Any], topology: Path, sets: tuple[str, ...]) -> None:
    """Keep what `bench pipeline` measured of a topology. A file that cannot be written costs a warning, no more."""
    from dspark_train.bench.profile import of_pipeline
    from dspark_train.cli.plan import resolve_file

    profile = of_pipeline(figures, resolve_file(topology, sets))
    try:
        path = write(profile, topology)
    except OSError as error:
        print(f"warning: {profile_path(topology)} was not written: {error.strerror}", file=sys.stderr)
    else:
        print(f"rates for `plan`: {path}", file=sys.stderr)


def save_run(run: str | None, topology: Path, *, json: bool) -> None:
    """Keep what the balance of a run saw beside a topology, and print it. Raises RunNotFound, UsageError."""
    from dspark_train.bench.profile import of_run
    from dspark_train.cli.runs import find_run
    from dspark_train.topology.resolve import Resolved

    layout = find_run(run)
    resolved = Resolved.model_validate_json(layout.resolved.read_text(encoding="utf-8"))
    lines = layout.events.read_text(encoding="utf-8").splitlines() if layout.events.exists() else []
    profile = of_run(layout.name, lines, resolved)
    try:
        path = write(profile, topology)
    except OSError as error:
        raise UsageError(f"{profile_path(topology)} cannot be written: {error.strerror}") from error
    print(profile.model_dump_json() if json else f"{profile.measured_by}: its rates are in {path}")


def write(profile: Profile, topology: Path) -> Path:
    """Keep a profile beside its topology, in place of the one there. Raises OSError."""
    path = profile_path(topology)
    beside = path.with_suffix(f".json.{os.getpid()}.new")
    beside.write_text(profile.model_dump_json(indent=1) + "\n", encoding="utf-8")
    os.replace(beside, path)
    return path


def _read(path: Path, remedy: str) -> Profile | None:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except UnicodeDecodeError:
        raise ProfileError([Problem(str(path), 0, "", "is not UTF-8", remedy)]) from None
    except OSError as error:
        raise ProfileError([Problem(str(path), 0, "", f"cannot be read ({error.strerror})", remedy)]) from None
    return parse(text, str(path), remedy)
