"""Reading a topology file: a `Topology`, or every problem of the file at once. Pure, but for reading that file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from dspark_train.errors import Problem, TopologyError
from dspark_train.topology import overrides as given
from dspark_train.topology import rules, tree
from dspark_train.topology.phrases import phrase, section_of
from dspark_train.topology.schema import Topology
from dspark_train.topology.source import Finding

_MAX_BYTES = 1 << 20
"""More is no topology, but a mistaken path."""


def load(path: str | Path, overrides: Sequence[str] = ()) -> Topology:
    """Read a topology file, with ``overrides`` (``a.b=c``, the value as YAML) in place of its values.

    Raises TopologyError with every problem that can be told: each with the line, or the override, the key and its
    value, and what to do. Rules between values are checked also where other values are wrong.
    """
    file = str(path)
    parsed = tree.parse(_text(Path(path), file), file)
    problems = given.apply(parsed, overrides)
    try:
        topology = Topology.model_validate_json(json.dumps(parsed.values), strict=True)
        found = list(rules.findings(topology))
    except ValidationError as error:
        details = error.errors(include_url=False)
        topology = _partial(Topology, parsed.values, {tuple(detail["loc"]) for detail in details})
        found = [phrase(detail, Topology) for detail in details]
        found += rules.findings(topology, partial=True)
    problems += [parsed.source.problem(finding) for finding in parsed.findings + _distinct(found)]
    if problems:
        raise TopologyError(sorted(problems, key=lambda problem: (problem.file != file, problem.line)))
    return topology.written_by(parsed.source)


def _text(path: Path, file: str) -> str:
    try:
        with path.open("rb") as stream:
            data = stream.read(_MAX_BYTES + 1)
    except FileNotFoundError:
        raise _unreadable(file, "does not exist", _neighbours(path) or "check the path") from None
    except IsADirectoryError:
        raise _unreadable(file, "is a directory", "name a file in it") from None
    except OSError as error:
        raise _unreadable(file, f"cannot be read ({error.strerror})", "check the path and its permissions") from None
    if len(data) > _MAX_BYTES:
        raise _unreadable(file, "is larger than 1 MiB", "name a topology file")
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise _unreadable(file, "is UTF-16", "save it as UTF-8")
    if b"\0" in data:
        raise _unreadable(file, "is not a text file", "name a topology file")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        text = f"is not UTF-8 (byte 0x{data[error.start]:02x})"
        raise TopologyError([Problem(file, line, "", text, "save it as UTF-8")]) from None


def _unreadable(file: str, text: str, remedy: str) -> TopologyError:
    return TopologyError([Problem(file, 0, "", text, remedy)])


def _neighbours(path: Path) -> str:
    """What else could have been meant: the topologies beside the missing file."""
    if not path.parent.is_dir():
        return ""
    names = sorted(other.name for other in path.parent.glob("*.yaml"))
    return f"{path.parent} holds {', '.join(names)}" if names else ""


def _distinct(found: list[Finding]) -> list[Finding]:
    """Without a second finding about the same key from the same cause (a value that is wrong, and out of bounds)."""
    return list(dict.fromkeys(found))


def _partial(model: type[Any], values: Any, wrong: set[tuple[str | int, ...]], at: tuple[str | int, ...] = ()) -> Any:
    """``model`` from the values that are right; a wrong or missing one is absent, so that reading it raises."""
    fields: dict[str, Any] = {}
    absent = []
    for name, field in model.model_fields.items():
        place, section = (*at, name), section_of(field)
        value = values.get(name)
        if section is not None and isinstance(value, dict):
            fields[name] = _partial(section, value, wrong, place)
        elif any(loc[: len(place)] == place for loc in wrong):
            absent.append(name)
        elif name in values:
            fields[name] = value
    built: BaseModel = model.model_construct(**fields)
    for name in absent:
        built.__dict__.pop(name, None)
    return built
