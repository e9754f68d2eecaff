"""What must be true of every run, whatever was done to it: the checks, applied to each scenario the same way."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.faults.runner import Outcome, Row

OPEN = ("planned", "leased", "ready", "taken")


def broken(outcome: Outcome, reference: Outcome) -> list[str]:
    """Every invariant that does not hold, in words; [] where all do."""
    found = [*_course(outcome, reference), *_accounts(outcome, reference), *_end(outcome)]
    for row in outcome.rows:
        found += [
            f"{row.fault.whom} {row.fault.text()} at step {row.at_step}: {text}" for text in _recovery(row, outcome)
        ]
    return found


def _course(outcome: Outcome, reference: Outcome) -> Iterator[str]:
    """Each step once, in order, on the same data, with the same loss."""
    numbers, expected = ([step["step"] for step in run.steps] for run in (outcome, reference))
    if numbers != expected:
        yield f"the steps are {numbers}"
    same_loss = outcome.scenario.same_loss
    yield from _differences("step", outcome.steps, reference.steps, same_loss)
    if [one["step"] for one in outcome.rounds] != [one["step"] for one in reference.rounds]:
        yield f"the validation rounds are after {[one['step'] for one in outcome.rounds]}"
    yield from _differences("validation round", outcome.rounds, reference.rounds, same_loss)


def _differences(
    what: str, lines: list[dict[str, Any]], expected: list[dict[str, Any]], same_loss: float
) -> Iterator[str]:
    pairs = list(zip(lines, expected, strict=False))
    other = [line["step"] for line, like in pairs if line.get("data_hash") != like.get("data_hash")]
    if other:
        yield f"{what}s with other data: {other}"
    off = {line["step"]: abs(line["loss"] / like["loss"] - 1) for line, like in pairs}
    if off and (worst := max(off.values())) > same_loss:
        first = next(step for step, by in off.items() if by > same_loss)
        yield f"losses differ from {what} {first} on, by {worst:.1e} at most"


def _accounts(outcome: Outcome, reference: Outcome) -> Iterator[str]:
    """Every sample of the run was trained, and nothing was thrown out of the store unread."""
    counts, expected = outcome.state["ledger"], reference.state["ledger"]
    for key in OPEN:
        if counts[key]:
            yield f"{counts[key]} samples are {key} at the end"
    if counts["trained"] != expected["trained"] or counts["failed"]:
        yield f"{counts['trained']} samples were trained and {counts['failed']} failed, not {expected['trained']} and 0"
    if outcome.state["store"]["num_evicted"]:
        yield f"{outcome.state['store']['num_evicted']} objects were evicted"


def _end(outcome: Outcome) -> Iterator[str]:
    if outcome.state["state"] != "done":
        yield f"the run is {outcome.state['state']}: {outcome.state['reason']}"
    if outcome.left:
        yield f"these are left running: {outcome.left}"
    if outcome.checkpoint_problems:
        yield f"the newest checkpoint is not sound: {outcome.checkpoint_problems}"
    kinds = {event["kind"] for event in outcome.events}
    if missing := [kind for kind in outcome.scenario.events if kind not in kinds]:
        yield f"the journal has no {', '.join(missing)}"


def _recovery(row: Row, outcome: Outcome) -> Iterator[str]:
    if row.problem:
        yield row.problem
    limit_s = outcome.scenario.recovered_within_s * outcome.slowness
    if row.stood_still_s > limit_s:
        yield f"training stood still for {row.stood_still_s:.1f} s, more than {limit_s:.0f} s"
    if row.status_code is not None and row.status_code != row.fault.status_code:
        yield f"status ended with {row.status_code}, not {row.fault.status_code}"
    if row.fault.what == "scale":
        ended = [event for event in outcome.events if event["kind"] in ("scale.done", "scale.rolled_back")]
        after = [event for event in ended if event["at_s"] >= row.at_s]
        if not after or f" {row.fault.ends}" not in after[0]["text"]:
            yield f"the transaction did not end {row.fault.ends}: {after[0]['text'] if after else 'it did not end'}"
