"""Reading a scenario file: a `Scenario`, or every problem of the file at once. Pure, but for reading that file."""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import ValidationError

from dspark_train.errors import FileProblems, Problem
from dspark_train.simulate.scenario import Scenario
from dspark_train.topology import tree
from dspark_train.topology.phrases import phrase


class ScenarioError(FileProblems):
    """The scenario file cannot be played as it is."""


def read(path: Path) -> Scenario:
    """The scenario of a file. Raises ScenarioError with every problem, each with its line and what to do.

    What is no YAML mapping at all raises the topology's own error for that.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        remedy = "name a file such as those in scenarios/"
        raise ScenarioError([Problem(str(path), 0, "", f"cannot be read ({reason})", remedy)]) from None
    parsed = tree.parse(text, str(path))
    found = list(parsed.findings)
    try:
        # Strict, so that a number in quotes is told apart; from JSON, so that lists become tuples.
        scenario = Scenario.model_validate_json(json.dumps(parsed.values), strict=True)
    except ValidationError as error:
        found += [phrase(detail, Scenario) for detail in error.errors(include_url=False)]
    if found:
        problems = [parsed.source.problem(finding) for finding in found]
        raise ScenarioError(sorted(problems, key=lambda problem: problem.line))
    return scenario
