"""What the API takes and answers, as types: the OpenAPI schema follows from them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class Order(BaseModel):
    """Unknown keys and wrong types are refused."""

    model_config = ConfigDict(extra="forbid", strict=True)


class StopOrder(Order):
    """now: end without writing a checkpoint."""

    now: bool = False


class ScaleOrder(Order):
    """Numbers of members as the command line takes them: "+1", "-1" or "3"; None leaves a pool as it is.

    drain: nodes to leave, by address, id or planned name; undrain: nodes that may be used again.
    """

    inference: str | None = Field(default=None, max_length=8)
    trainers: str | None = Field(default=None, max_length=8)
    drain: list[Annotated[str, Field(max_length=256)]] = Field(default_factory=list, max_length=256)
    undrain: list[Annotated[str, Field(max_length=256)]] = Field(default_factory=list, max_length=256)
    dry_run: bool = False


class RebalanceOrder(Order):
    """auto: decide and act; advise: decide and tell; off."""

    mode: Literal["auto", "advise", "off"]


class Accepted(BaseModel):
    """The order is taken; what comes of it is in the state and the events."""

    accepted: bool = True


class Refusal(BaseModel):
    """Why not."""

    detail: str


class Change(BaseModel):
    """A process that starts or stops."""

    name: str
    node: str


class ScaleAnswer(BaseModel):
    """The transaction, and what it starts and stops."""

    id: str
    num_from: dict[str, int]
    num_to: dict[str, int]
    state: str
    phase: str
    reason: str
    drains: dict[str, str]
    retires: list[str]
    moves: list[str]
    started_at: str
    ended_at: str
    pause_s: float | None
    starts: list[Change]
    stops: list[Change]
    dry_run: bool
    expected_pause_s: float | None
    predicted_tokens_per_s: float | None


class HistoryAnswer(BaseModel):
    """columns: name -> a value a point. is_whole: these are all points, not only the new ones. left_s: from, to."""

    width_s: float
    is_whole: bool
    columns: dict[str, list[float | None]]
    left_s: list[float] | None


class EventPage(BaseModel):
    """Events in order, each with its id. next_id: ask on after it."""

    events: list[dict[str, Any]]
    next_id: int
    has_more: bool


class LogList(BaseModel):
    """Component -> bytes of its log."""

    logs: dict[str, int]


class LogTail(BaseModel):
    """The last lines of a log of num_bytes."""

    member: str
    num_bytes: int
    lines: list[str]
