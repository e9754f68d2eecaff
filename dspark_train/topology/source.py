"""Where each value of a topology was written, so that any later check can name the line. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from dspark_train.errors import Problem


class Finding(NamedTuple):
    """Something wrong with a value, before it is known where that value was written."""

    key: str
    """Dotted path, such as ``engines.count.max`` or ``target.layers[0]``; "" for the whole file."""
    text: str
    remedy: str


@dataclass(eq=False)
class Source:
    """The file, and the overrides, that a topology was read from.

    lines: key -> 1-based line of the file. overrides: key -> the ``--set`` argument that gave its value.
    """

    file: str = "topology"
    lines: dict[str, int] = field(default_factory=dict)
    overrides: dict[str, str] = field(default_factory=dict)

    def __eq__(self, other: object) -> bool:
        # Two topologies with equal values are equal, wherever they were read: one comes back from JSON without lines.
        return isinstance(other, Source)

    def __hash__(self) -> int:
        return 0

    def problem(self, finding: Finding) -> Problem:
        """``finding`` placed at the line of its key, else of the nearest section that holds it."""
        for key in _outwards(finding.key):
            if key in self.overrides:
                return Problem(self.overrides[key], 0, finding.key, finding.text, finding.remedy)
            if key in self.lines:
                return Problem(self.file, self.lines[key], finding.key, finding.text, finding.remedy)
        return Problem(self.file, 0, finding.key, finding.text, finding.remedy)


def join(prefix: str, part: str | int) -> str:
    """One step deeper: ``a.b`` for a key, ``a[0]`` for a place in a list."""
    if isinstance(part, int):
        return f"{prefix}[{part}]"
    return f"{prefix}.{part}" if prefix else part


def _outwards(key: str) -> list[str]:
    """``key`` and the sections around it, innermost first."""
    keys = [key]
    while key:
        cut = max(key.rfind("."), key.rfind("["))
        key = key[:cut] if cut > 0 else ""
        if key:
            keys.append(key)
    return keys
