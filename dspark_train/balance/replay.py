"""A recorded journal gives the same decisions again. Pure: lines in, decisions out.

Two kinds of line: `balance.began` with the settings and the state to begin with, once a life of the controller, and
`balance.seen` with an observation and the decision that was made on it. Other lines are passed over.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pydantic import TypeAdapter

from dspark_train.balance.decide import decide
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
    settings: Settings | None = None
    state = State()
    for event in events:
        if event.get("kind") == BEGAN:
            settings = _SETTINGS.validate_python(event["settings"])
            state = _STATE.validate_python(event["state"])
        elif event.get("kind") == SEEN:
            if settings is None:
                raise ValueError(f"the journal has {SEEN} before {BEGAN}: its beginning is missing")
            state, decision = decide(settings, state, OBSERVATION.validate_python(event["seen"]))
            yield decision, _DECISION.validate_python(event["decision"])
