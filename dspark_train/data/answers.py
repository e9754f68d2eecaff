"""The file of answers that the target has written so far: one JSON line a conversation, appended as they come.

A second attempt at a regeneration reads it and asks only for what is missing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TextIO

from dspark_train.data.conversation import Message


class AnswersFile:
    """Answers by (conversation id, digest of what was asked). A context manager: open for appending inside."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._answers: dict[tuple[str, str], tuple[Message, ...]] = {}
        self._file: TextIO | None = None

    def __enter__(self) -> Self:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        whole = self._read() if self.path.exists() else 0
        self._file = self.path.open("a", encoding="utf-8")
        self._file.truncate(whole)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def get(self, name: str, digest: str) -> tuple[Message, ...] | None:
        """All turns of a conversation, answers included; None where they are not there yet."""
        return self._answers.get((name, digest))

    def add(self, name: str, digest: str, domain: str, messages: tuple[Message, ...]) -> None:
        """Append one conversation; it is in the file when this returns."""
        assert self._file is not None, "add() belongs inside the with block"
        self._answers[name, digest] = messages
        turns = [message.as_json() for message in messages]
        line = {"id": name, "domain": domain, "messages": turns, "asked": digest}
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()

    def _read(self) -> int:
        """Read what is whole. Returns its size in bytes: a line cut off by a crash is left behind it."""
        whole = 0
        with self.path.open("rb") as handle:
            for raw in handle:
                try:
                    value = json.loads(raw)
                    key, messages = (value["id"], value["asked"]), tuple(_messages(value["messages"]))
                except (ValueError, KeyError, TypeError):
                    break
                if not raw.endswith(b"\n"):
                    break
                self._answers[key] = messages
                whole += len(raw)
        return whole


def _messages(turns: list[dict[str, Any]]) -> Iterator[Message]:
    for turn in turns:
        yield Message(turn["role"], turn["content"], turn.get("reasoning_content", ""))
