"""``--set a.b=c``: values given on the command line in place of the file's. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dspark_train.errors import Problem
from dspark_train.topology.source import Source, join
from dspark_train.topology.tree import Tree, kind, parse_value

_HOW = "write --set key.of.the.file=value, such as --set engines.count.max=4"


def apply(tree: Tree, overrides: Sequence[str]) -> list[Problem]:
    """Put each override into ``tree``, the last one winning. The value is read as YAML, and may be a mapping or list.

    Returns what is wrong with the overrides themselves; whether the values fit is checked with the file's.
    """
    problems = []
    for override in overrides:
        place = f"--set {override}"
        path, equals, text = override.partition("=")
        steps = [step.strip() for step in path.split(".")]
        if not equals or not all(steps):
            problems.append(Problem(place, 0, "", "is not of the form key=value", _HOW))
            continue
        try:
            value = parse_value(text)
        except ValueError as error:
            problems.append(Problem(place, 0, path, f"has a value that is not YAML ({error})", "put it in quotes"))
            continue
        blocker = _put(tree.values, steps, value)
        if blocker:
            problems.append(Problem(place, 0, blocker[0], f"is {blocker[1]}, which has no keys", "set it as a whole"))
            continue
        _remember(tree.source, steps, place)
    return problems


def _put(values: dict[str, Any], steps: list[str], value: Any) -> tuple[str, str] | None:
    """Set the value at ``steps``; where a step is no mapping, its key and kind instead."""
    key = ""
    for step in steps[:-1]:
        key = join(key, step)
        below = values.get(step)
        if below is None:
            below = values[step] = {}
        if not isinstance(below, dict):
            return key, kind(below)
        values = below
    values[steps[-1]] = value
    return None


def _remember(source: Source, steps: list[str], place: str) -> None:
    """What stood at ``steps`` and below no longer comes from the file, nor do the sections made to hold it."""
    key = ".".join(steps)
    for table in (source.lines, source.overrides):
        for known in [k for k in table if k == key or k.startswith((f"{key}.", f"{key}["))]:
            del table[known]
    for end in range(1, len(steps) + 1):
        outer = ".".join(steps[:end])
        if outer not in source.lines:
            source.overrides.setdefault(outer, place)
