"""A recorded journal gives the same decisions again. Pure: lines in, decisions out.

Two kinds of line: `balance.began` with the settings and the state to begin with, once a life of the controller, and
`balance.seen` with an observation and the decision that was made on it. Other lines are passed over.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from pydantic import TypeAdapter

from dspark_train.balance.decide import decide, known_rates
from dspark_train.balance.decision import OBSERVATION, Decision, State
from dspark_train.balance.rule import Settings
from dspark_train.balance.seen import Observation

BEGAN, SEEN = "balance.began", "balance.seen"
_SETTINGS: TypeAdapter[Settings] = TypeAdapter(Settings)
_STATE: TypeAdapter[State] = TypeAdapter(State)
_DECISION: TypeAdapter[Decision] = TypeAdapter(Decision)


def began(settings: Settings, state: State) -> dict[str, Any]:
    """The data of a `balance.began` line: JSON values."""
    return {"settings": _SETTINGS.dump_python(settings, mode="json"), "state": _STATE.dump_python(state, mode="json")}


def recorded(seen: Observation, decision: Decision) -> dict[str, Any]:
    """The data of a `balance.seen` line: JSON values."""
    return {
        "seen": OBSERVATION.dump_python(seen, mode="json"),
        "decision": _DECISION.dump_python(decision, mode="json"),
    }


def replay(events: Iterable[Mapping[str, Any]]) -> Iterator[tuple[Decision, Decision]]:
    """For every recorded observation: the decision made anew, and the one recorded. Equal, or one of them is wrong.

    Raises ValueError for an observation before any `balance.began`, and for a line that is none of ours.
    """
    for event, look in _looks(events):
        yield look.decision, _DECISION.validate_python(event["decision"])


class Seen(NamedTuple):
    """What was known at one moment of a run."""

    at: str
    num_ranks: int
    step_packs: int
    engines: tuple[float, ...]
    """Tokens a second of each."""
    rank: float
    link: float | None
    """None while the link held nobody up."""


def last_rates(events: Iterable[Mapping[str, Any]]) -> Seen | None:
    """The rates of a recorded run when all of them were last known; None where they never were.

    Raises ValueError as :func:`replay` does.
    """
    last = None
    for event, look in _looks(events):
        known, rank = known_rates(look.settings, look.state.known, look.seen), look.state.known.rank
        if known is None or rank is None:
            continue
        link = look.state.known.link
        last = Seen(
            at=str(event["at"]),
            num_ranks=look.seen.split.num_ranks,
            step_packs=look.settings.layout.step_packs,
            engines=known.model.rates.engines,
            rank=rank.value,
            link=None if link is None else link.value,
        )
    return last


class _Look(NamedTuple):
    settings: Settings
    state: State
    """After the decision."""
    seen: Observation
    decision: Decision


def _looks(events: Iterable[Mapping[str, Any]]) -> Iterator[tuple[Mapping[str, Any], _Look]]:
    """Every `balance.seen` line with what follows from it."""
    settings: Settings | None = None
    state = State()
    for event in events:
        if event.get("kind") == BEGAN:
            settings = _SETTINGS.validate_python(event["settings"])
            state = _STATE.validate_python(event["state"])
        elif event.get("kind") == SEEN:
            if settings is None:
                raise ValueError(f"the journal has {SEEN} before {BEGAN}: its beginning is missing")
            seen = OBSERVATION.validate_python(event["seen"])
            state, decision = decide(settings, state, seen)
            yield event, _Look(settings, state, seen, decision)
