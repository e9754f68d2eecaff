"""A line for fault scenarios, the run that was left alone, and one call that plays and judges a scenario."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.faults import invariants, table
from tests.faults.inputs import LIES, topology, write_dataset
from tests.faults.runner import Outcome, play
from tests.faults.scenario import Scenario, slowness
from tests.real.line import Line


@pytest.fixture(scope="package")
def line(tmp_path_factory: pytest.TempPathFactory, tiny_target: Path) -> Line:
    """A directory with a data set and a topology."""
    root = tmp_path_factory.mktemp("faults")
    write_dataset(root / "data")
    return Line(root, topology(tiny_target, root / "data", root / LIES))


@pytest.fixture(scope="package")
def undisturbed(line: Line) -> Callable[[Scenario], Outcome]:
    """How a scenario's run goes that is left alone: one engine, one rank, as fast as it can. Each made once."""
    made: dict[tuple[int, tuple[str, ...]], Outcome] = {}

    def run(scenario: Scenario) -> Outcome:
        key = scenario.num_steps, scenario.base
        if key not in made:
            alone = Scenario(f"undisturbed-{len(made)}", (), base=scenario.base, num_steps=scenario.num_steps)
            made[key] = play(line, alone)
            assert [step["step"] for step in made[key].steps] == list(range(1, scenario.num_steps + 1))
            assert invariants.broken(made[key], made[key]) == []
        return made[key]

    return run


@pytest.fixture
def survive(line: Line, undisturbed: Callable[[Scenario], Outcome]) -> Iterator[Callable[[Scenario], Outcome]]:
    """Play a scenario, print what became of each fault, and hold it to the invariants. Leaves no process behind."""

    def run(scenario: Scenario) -> Outcome:
        reference = undisturbed(scenario)
        outcome = play(line, scenario, slowness(reference.start_s))
        table.show(outcome)
        broken = invariants.broken(outcome, reference)
        assert not broken, "\n".join(broken)
        return outcome

    yield run
    line.end_all()
