"""What a liar is ordered to do, and what its lies look like. No network here.

Orders are data in a file, so that a test can give them while a run goes on:
``{"mode": "nan", "count": 5, "port": 20001, "delay_s": 5}``, of which all but the mode may be left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dspark_train.engine.stand_in_writers import States

DEFAULT_DELAY_S = 5.0
PUT_MODES = ("nan", "zeros", "constant", "wrong_length", "wrong_tokens")
"""Lies that put a sample of their own."""
Mode = Literal[
    "nan", "zeros", "constant", "wrong_length", "wrong_tokens",  # objects that must not be trained on
    "non_finite", "stale_key", "drop", "wrong_answer", "error_500", "hang", "slow",  # no object, or no good answer
]  # fmt: skip


class Order(BaseModel):
    """A lie, and how often to tell it.

    count: so many requests, of the processes that run when the order is given; None: all, also of processes that start
    later, until the file changes. port: only the engine that answers there. delay_s: of the mode slow.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    mode: Mode
    count: int | None = Field(default=None, ge=1)
    port: int | None = None
    delay_s: float = Field(default=DEFAULT_DELAY_S, ge=0)


class Orders:
    """The orders of one engine, out of a file that need not exist."""

    def __init__(self, path: Path, port: int) -> None:
        """port: where this engine answers. An order with a count that is there already was for others."""
        self._path, self._port = path, port
        self._seen, self._order = self._stamp(), self._read()
        if self._order and self._order.count is not None:
            self._order = None
        self._num_left = 0
        self.problem = ""
        """Why the file cannot be followed, "" while it can."""

    def next(self) -> Order | None:
        """The lie to answer the next request with, None: the truth."""
        stamp = self._stamp()
        if stamp != self._seen:
            self._seen, self._order = stamp, self._read()
            self._num_left = self._order.count or 0 if self._order else 0
        order = self._order
        if order is None or order.port not in (None, self._port):
            return None
        if order.count is not None:
            if not self._num_left:
                return None
            self._num_left -= 1
        return order

    def _stamp(self) -> tuple[int, int]:
        try:
            found = self._path.stat()
        except FileNotFoundError:
            return 0, 0
        return found.st_mtime_ns, found.st_size

    def _read(self) -> Order | None:
        self.problem = ""
        try:
            text = self._path.read_text()
            return Order.model_validate_json(text) if text.strip() else None
        except FileNotFoundError:
            return None
        except ValidationError as error:
            self.problem = f"{self._path}: {error}"
            return None


class SpoiltStates:
    """Hidden states with what ``mode`` is about: one value that is not a number, zeros, or one row again and again."""

    def __init__(self, honest: States) -> None:
        self._honest = honest
        self.mode = ""

    def of(self, token_ids: Sequence[int]) -> npt.NDArray[np.float32]:
        """float32 [tokens, layers, width]."""
        hidden = self._honest.of(token_ids)
        if self.mode == "nan":
            hidden[len(token_ids) // 2, 0, 0] = np.nan
        elif self.mode == "zeros":
            hidden[:] = 0
        elif self.mode == "constant":
            hidden[:] = hidden[:1]
        return hidden


def spoilt_tokens(mode: str, token_ids: Sequence[int]) -> list[int]:
    """The tokens whose sample is put: others, or of another number, where the mode is about them."""
    if mode == "wrong_length":
        return [*token_ids, token_ids[-1]]
    return [token + 1 for token in token_ids] if mode == "wrong_tokens" else list(token_ids)
