"""A conversation in normal form: what every input file becomes, and what the rest of data preparation reads. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Role = Literal["system", "user", "assistant", "tool"]


@dataclass(frozen=True)
class Message:
    """One turn. ``reasoning`` is what the model thought before an answer, "" where the file has none."""

    role: Role
    content: str
    reasoning: str = ""

    def as_json(self) -> dict[str, str]:
        """The keys that chat endpoints and speculators' preprocessing read."""
        turn = {"role": self.role, "content": self.content}
        return turn | {"reasoning_content": self.reasoning} if self.reasoning else turn


@dataclass(frozen=True)
class Conversation:
    """The turns of one record, and the file and 1-based line (or row) that they come from."""

    id: str
    domain: str
    messages: tuple[Message, ...]
    file: str
    line: int

    def has_answer(self) -> bool:
        """Whether some assistant turn follows a user turn: without one there is nothing to train on."""
        roles = [message.role for message in self.messages]
        return "user" in roles and "assistant" in roles[roles.index("user") :]
