"""pydantic's complaints in the words of the file: what is wrong with which value, and what to write instead. Pure."""

from __future__ import annotations

import difflib
import json
import types
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from dspark_train.topology.source import Finding, join

_WRONG_KIND = {
    "int": ("is not a whole number", "write a whole number"),
    "float": ("is not a number", "write a number, without quotes"),
    "finite_number": ("is not a finite number", "write a number"),
    "string": ("is not a text", "put it in quotes"),
    "bool": ("is not true or false", "write true or false"),
    "tuple": ("is not a list", "write [a, b, c]"),
    "list": ("is not a list", "write [a, b, c]"),
    "dict": ("is not a mapping", "write its keys below it"),
    "model": ("is not a mapping", "write its keys below it"),
}
_BOUNDS = {
    "greater_than_equal": ("ge", "is below {}", "use {} or more"),
    "greater_than": ("gt", "is not above {}", "use more than {}"),
    "less_than_equal": ("le", "is above {}", "use {} or less"),
    "less_than": ("lt", "is not below {}", "use less than {}"),
}
_PATTERNS = {
    "name": "use lower-case letters, digits, '.', '_' and '-', at most 63, with a letter or digit at both ends",
}


def phrase(error: Mapping[str, Any], model: type[BaseModel]) -> Finding:
    """One of pydantic's error details, found while reading ``model``, as a finding."""
    loc = tuple(error["loc"])
    key = ""
    for part in loc:
        key = join(key, part)
    if error["type"] == "missing":
        return Finding(key, "is missing", f"add it{_described(model, loc)}")
    if error["type"] == "extra_forbidden":
        return unknown_key(key, section_keys(model, loc[:-1]), all_keys(model))
    text, remedy = _complaint(error, str(loc[-1]) if loc else "")
    return Finding(key, text, remedy)


def unknown_key(key: str, known: Iterable[str], elsewhere: Iterable[str] = ()) -> Finding:
    """``key`` is none of the ``known`` keys of its section; ``elsewhere`` are dotted keys of the whole file."""
    known = sorted(known)
    section, _, last = key.rpartition(".")
    near = difflib.get_close_matches(last, known, n=1, cutoff=0.6)
    moved = [other for other in elsewhere if other.rpartition(".")[2] == last]
    below = [other for other in moved if other.startswith(section)]
    guess = next(iter(below + near + moved), "")
    return Finding(key, "is not a known key", f"did you mean {guess}?" if guess else f"use one of {', '.join(known)}")


def show(value: Any) -> str:
    """A value as it would be written, cut to fit a line."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _complaint(error: Mapping[str, Any], last: str) -> tuple[str, str]:
    code, value, context = error["type"], error.get("input"), error.get("ctx", {})
    if code in _BOUNDS:
        name, text, remedy = _BOUNDS[code]
        limit = f"{context[name]:g}" if isinstance(context[name], float) else str(context[name])
        return f"({show(value)}) {text.format(limit)}", remedy.format(limit)
    if code == "literal_error":
        return _not_one_of(value, context["expected"])
    if code == "string_pattern_mismatch":
        return f"({show(value)}) has characters that it may not", _PATTERNS.get(last, f"use {context['pattern']}")
    if code in ("string_too_short", "too_short"):
        return "is empty", "write a value"
    kind = code if code in _WRONG_KIND else code.split("_")[0]
    text, remedy = _WRONG_KIND.get(kind, (error["msg"], "correct it"))
    if value is None:
        return "is empty", f"{remedy}, or remove the line"
    return f"({show(value)}) {text}", remedy


def _not_one_of(value: Any, expected: str) -> tuple[str, str]:
    options = [part.strip(" '") for part in expected.replace(" or ", ", ").split(",")]
    near = difflib.get_close_matches(str(value), options, n=1, cutoff=0.6)
    remedy = f"did you mean {near[0]}?" if near else f"use one of {', '.join(options)}"
    return ("is empty" if value is None else f"({show(value)}) is not a known value"), remedy


def _described(model: type[BaseModel], loc: tuple[str | int, ...]) -> str:
    field = _field(model, loc)
    text = (field.description or "") if field else ""
    section = section_of(field) if field else None
    if not text and section is not None:
        text = (section.__doc__ or "").strip().split("\n")[0]
    return f" ({text.rstrip('.')})" if text else ""


def _field(model: type[BaseModel], loc: tuple[str | int, ...]) -> FieldInfo | None:
    section: type[BaseModel] | None = model
    field = None
    for part in loc:
        field = section.model_fields.get(str(part)) if section else None
        section = section_of(field) if field else None
    return field


def section_of(field: FieldInfo) -> type[BaseModel] | None:
    """The section that a field holds; None where it holds a plain value."""
    found = field.annotation
    if get_origin(found) in (Union, types.UnionType):
        found = next((arg for arg in get_args(found) if arg is not type(None)), None)
    return found if isinstance(found, type) and issubclass(found, BaseModel) else None


def section_keys(model: type[BaseModel], loc: tuple[str | int, ...]) -> list[str]:
    """The keys of the section at ``loc``."""
    field = _field(model, loc)
    section = section_of(field) if field else (model if not loc else None)
    return list(section.model_fields) if section else []


def all_keys(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Every dotted key below ``model``, sections included."""
    for name, field in model.model_fields.items():
        key = join(prefix, name)
        yield key
        section = section_of(field)
        if section:
            yield from all_keys(section, key)
