"""One decision of the balance, and what is remembered from one to the next. Plain data that goes through JSON."""

from __future__ import annotations

from dataclasses import dataclass, field

from pydantic import TypeAdapter

from dspark_train.balance.estimator import NOTHING, Estimator
from dspark_train.balance.reasons import Reason
from dspark_train.balance.seen import Observation, Pool, Split

Direction = tuple[int, int]
"""Signs of the changes of engines and ranks."""


@dataclass(frozen=True, slots=True)
class Course:
    """How far a move has come on its way to be made."""

    direction: Direction = (0, 0)
    num_windows: int = 0
    """In a row in which a move in this direction was found better."""
    num_idle: int = 0
    """In a row in which there were engines to release."""
    rest_until_s: float = 0.0
    """No move before: the cooldown after the last one."""


@dataclass(frozen=True, slots=True)
class Made:
    """The last move of the balance's own: a move back needs rates that differ from those it was made on."""

    direction: Direction
    log_ratio: float
    """Logarithm of the engines' mean rate over the ranks' then."""
    error: float
    """Its standard error then."""


@dataclass(frozen=True, slots=True)
class State:
    """What the balance remembers."""

    at_s: float | None = None
    """Of the last observation that counted."""
    split: Split | None = None
    known: Estimator = NOTHING
    is_settling: bool = False
    """Whether sizes were changed and not every member has settled since."""
    made: Made | None = None
    acting: Course = Course()
    """Of the pools in mode auto."""
    advised: Course = Course()
    """Of these and the pools in mode advise."""

    def to_json(self) -> str:
        """One line."""
        return _STATE.dump_json(self).decode()

    @classmethod
    def from_json(cls, text: str) -> State:
        """The inverse of :meth:`to_json`. Raises pydantic's ValidationError, a ValueError."""
        return _STATE.validate_json(text)


@dataclass(frozen=True, slots=True)
class Decision:
    """What is to be done, and why. On a hold ``to`` is ``now``."""

    at_s: float
    now: Split
    to: Split
    reason: Reason
    acts: bool = False
    """Whether the controller shall do it; False for a hold, and for advice."""
    gain_frac: float | None = None
    """Gain of throughput by the best move there is, whether it is made or not; None while rates are unknown."""
    gain_low_frac: float | None = None
    """Its lower bound."""
    cost_tokens: float = 0.0
    """What that move would cost: tokens not trained meanwhile."""
    candidate: Split | None = None
    """That move's sizes."""
    gives_first: Pool | None = None
    """The pool that must shrink before the other has room to grow."""
    not_before_s: float | None = None
    """The earliest time of a move; None while nothing but the rates stands in its way."""

    def text(self) -> str:
        """In a sentence, with the figures."""
        if not self.reason.is_move:
            return f"hold {self.now.text()}: {self.reason}{self._figures()}"
        verb = "move" if self.acts else "advice: move"
        return f"{verb} {self.now.text()} -> {self.to.text()}: {self.reason}{self._figures()}"

    def to_json(self) -> str:
        """One line."""
        return _DECISION.dump_json(self).decode()

    @classmethod
    def from_json(cls, text: str) -> Decision:
        """The inverse of :meth:`to_json`. Raises pydantic's ValidationError, a ValueError."""
        return _DECISION.validate_json(text)

    def _figures(self) -> str:
        if self.gain_frac is None or self.gain_low_frac is None or self.candidate is None:
            return ""
        gain = f"{self.candidate.text()} would give {self.gain_frac:+.1%}, at least {self.gain_low_frac:+.1%}"
        return f" ({gain}, for {self.cost_tokens:,.0f} tokens)"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the gates say of one set of pools, before it is known whether it is done or only advised."""

    reason: Reason
    to: Split | None = None
    gain_frac: float | None = None
    gain_low_frac: float | None = None
    cost_tokens: float = 0.0
    not_before_s: float | None = None
    course: Course = field(default_factory=Course)


_STATE: TypeAdapter[State] = TypeAdapter(State)
_DECISION: TypeAdapter[Decision] = TypeAdapter(Decision)
OBSERVATION: TypeAdapter[Observation] = TypeAdapter(Observation)
