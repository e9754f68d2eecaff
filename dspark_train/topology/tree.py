"""A YAML text as plain values, with the line of every key and every problem of its form. Knows nothing of topologies.

Scalars follow YAML 1.2: ``off`` and ``yes`` are text, ``1e-4`` is a number. PyYAML's own rules are those of YAML 1.1,
where ``mode: off`` is a boolean and ``lr: 1e-4`` a text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml

from dspark_train.errors import Problem, TopologyError
from dspark_train.topology.source import Finding, Source, join

_MAX_NODES = 10_000
"""Values in one file. Aliases can make a small file expand to billions."""
_MAX_DIGITS = 18
"""A longer number counts nothing that exists, and stays text."""
_TAG = "tag:yaml.org,2002:"
_NULL = re.compile(r"~|null|Null|NULL|")
_BOOL = re.compile(r"true|True|TRUE|false|False|FALSE")
_INT = re.compile(r"[-+]?[0-9][0-9_]*|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(
    r"[-+]?(?:\.[0-9]+|[0-9][0-9_]*(?:\.[0-9_]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"
)

_BaseLoader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_BaseLoader):  # type: ignore[misc]
    """The C parser where PyYAML has it, with plain scalars left as text: this module reads them."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012


@dataclass
class Tree:
    """A text's top mapping, where each key stands, and what is wrong with its form."""

    values: dict[str, Any]
    source: Source
    findings: list[Finding] = field(default_factory=list)


def parse(text: str, file: str) -> Tree:
    """Read a YAML mapping.

    Raises TopologyError where nothing can be read: a syntax error, an empty text, something else than a mapping.
    Duplicate keys, tags and keys that are not text are findings beside the values.
    """
    root = _compose(text, file)
    if root is None:
        raise TopologyError([Problem(file, 0, "", "is empty", "start from a file in topologies/")])
    tree = Tree({}, Source(file))
    values = _Reader(tree).value(root, "", 0)
    if not isinstance(values, dict):
        remedy = "write keys with values, such as name: my-run"
        raise TopologyError([Problem(file, root.start_mark.line + 1, "", f"holds {kind(values)}, not keys", remedy)])
    tree.values = values
    return tree


def parse_value(text: str) -> Any:
    """One YAML value, as written after ``--set a.b=``. Raises ValueError saying what is wrong with it."""
    try:
        root = yaml.compose(text, Loader=_Loader)
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(_first_line(error)) from error
    if root is None:
        return None
    tree = Tree({}, Source("--set"))
    value = _Reader(tree).value(root, "", 0)
    if tree.findings:
        raise ValueError(tree.findings[0].text)
    return value


def kind(value: Any) -> str:
    """What a YAML value is, in words."""
    names = {
        dict: "a mapping",
        list: "a list",
        bool: "true or false",
        int: "a number",
        float: "a number",
        str: "a text",
    }
    return names.get(type(value), "nothing")


def _compose(text: str, file: str) -> Any:
    try:
        return yaml.compose(text, Loader=_Loader)
    except RecursionError:
        problem = Problem(file, 0, "", "is nested too deeply", "a topology has three levels")
    except yaml.reader.ReaderError as error:
        line = text[: error.position].count("\n") + 1
        problem = Problem(
            file, line, "", f"holds the control character U+{error.character:04X}", "save it as plain text"
        )
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 0
        problem = _syntax_problem(text, file, line, error.problem or "cannot be parsed")
    raise TopologyError([problem])


def _syntax_problem(text: str, file: str, line: int, said: str) -> Problem:
    lines = text.split("\n")
    for number in (line, line - 1):
        written = lines[number - 1] if 0 < number <= len(lines) else ""
        if "\t" in written[: len(written) - len(written.lstrip())]:
            return Problem(file, number, "", "is indented with a tab", "YAML wants spaces")
    if "expected a single document" in said or "but found another document" in said:
        return Problem(file, line, "", "begins a second YAML document", "a topology is one document: remove the '---'")
    remedy = "look for a missing colon, quote or bracket, or a wrong indent, on this line or the one before"
    return Problem(file, line, "", f"is not valid YAML ({said})", remedy)


def _first_line(error: Exception) -> str:
    return str(getattr(error, "problem", None) or error).split("\n")[0]


class _Reader:
    """Turns YAML nodes into values, noting lines and findings in the tree."""

    def __init__(self, tree: Tree) -> None:
        self.tree, self.num_nodes = tree, 0
        self.open: set[int] = set()

    def value(self, node: Any, key: str, line: int) -> Any:
        self.num_nodes += 1
        if self.num_nodes > _MAX_NODES or id(node) in self.open:
            raise TopologyError(
                [Problem(self.tree.source.file, line, key, "expands without end", "write it without aliases")]
            )
        if isinstance(node, yaml.ScalarNode):
            return self.scalar(node, key)
        if not node.tag.startswith(_TAG):
            self.find(key, f"has the tag {node.tag}", "remove the tag")
        self.open.add(id(node))
        value = self.mapping(node, key) if isinstance(node, yaml.MappingNode) else self.sequence(node, key)
        self.open.discard(id(node))
        return value

    def sequence(self, node: Any, key: str) -> list[Any]:
        return [self.child(item, join(key, index)) for index, item in enumerate(node.value)]

    def mapping(self, node: Any, key: str) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for name, child in self.entries(node, key):
            path = join(key, name.value)
            if name.value in values:
                first = self.tree.source.lines[path]
                again = f"is written twice, on lines {first} and {name.start_mark.line + 1}"
                self.find(path, again, "keep one of them")
                continue
            values[name.value] = self.child(child, path, name.start_mark.line + 1)
        return values

    def entries(self, node: Any, key: str) -> Iterator[tuple[Any, Any]]:
        for name, child in node.value:
            if isinstance(name, yaml.ScalarNode) and (name.style or name.value not in ("<<", "")):
                yield name, child
                continue
            what = "a merge key <<" if getattr(name, "value", "") == "<<" else "a key that is not text"
            self.tree.source.lines.setdefault(key, name.start_mark.line + 1)
            self.find(key, f"holds {what}", "write plain keys")

    def child(self, node: Any, path: str, line: int = 0) -> Any:
        line = line or node.start_mark.line + 1
        self.tree.source.lines[path] = line
        return self.value(node, path, line)

    def scalar(self, node: Any, key: str) -> Any:
        # Without implicit resolvers a plain scalar has the tag str, as a quoted one has; the style tells them apart.
        if node.tag != f"{_TAG}str":
            self.find(key, f"has the tag {node.tag.replace(_TAG, '!!')}", "remove the tag")
        return node.value if node.style else _plain(node.value)

    def find(self, key: str, text: str, remedy: str) -> None:
        self.tree.findings.append(Finding(key, text, remedy))


def _plain(text: str) -> Any:
    """A scalar without quotes, by the core rules of YAML 1.2 (chapter 10.3), with ``1_000`` allowed as in 1.1."""
    if _NULL.fullmatch(text):
        return None
    if _BOOL.fullmatch(text):
        return text.lower() == "true"
    if _INT.fullmatch(text):
        digits = text.replace("_", "")
        if len(digits) > _MAX_DIGITS:
            return text
        return int(digits, {"0x": 16, "0o": 8}.get(digits[:2], 10))
    if _FLOAT.fullmatch(text):
        spelled = text.lower().replace("_", "")
        return float(spelled.replace(".", "") if spelled.endswith(("inf", "nan")) else spelled)
    return text
