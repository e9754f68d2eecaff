"""The shapes that a conversation record may have, and what is wrong with one that has none. Pure.

Nothing is guessed: a role, a key or a part that is not known is refused, since text lost here would be trained on
as if it had never been there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dspark_train.data.conversation import Message, Role

ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "human": "user",
    "prompter": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "model": "assistant",
    "bot": "assistant",
    "tool": "tool",
    "function": "tool",
    "observation": "tool",
}
TURN_LISTS = ("messages", "conversations", "conversation")
PROMPTS = ("prompt", "instruction", "question")
RESPONSES = ("response", "completion", "output", "answer")
KNOWN_SHAPES = (
    "messages [{role, content}], conversations [{from, value}], or prompt and response "
    "(instruction and output, question and answer)"
)
NUM_KEYS_SHOWN = 8


class Rejected(Exception):
    """A record that cannot be used: the key in question ("" for the record), what is wrong, what to do."""

    def __init__(self, key: str, text: str, remedy: str) -> None:
        super().__init__(f"{key} {text}: {remedy}")
        self.key, self.text, self.remedy = key, text, remedy


def messages_of(record: object, *, regenerate: bool) -> tuple[Message, ...]:
    """The turns of a record of any known shape.

    regenerate: the target will write the assistant turns, so theirs may be missing or empty. Raises Rejected.
    """
    if not isinstance(record, Mapping):
        raise Rejected("", f"is {_kind(record)}, not an object", "write one {...} a record")
    if record.get("tools"):
        raise Rejected("tools", "are not read", "remove the record, or prepare it with speculators")
    for key in TURN_LISTS:
        if record.get(key) is not None:
            messages = _turns(record[key], key, regenerate)
            break
    else:
        messages = _pair(record, regenerate)
    _check_turns(messages, regenerate)
    return messages


def _check_turns(messages: tuple[Message, ...], regenerate: bool) -> None:
    roles = [message.role for message in messages]
    if "user" not in roles:
        raise Rejected("", "has no user turn", "add the user's message, or remove the record")
    if not regenerate and "assistant" not in roles[roles.index("user") :]:
        raise Rejected(
            "", "has no assistant turn after a user turn", "add an answer, or let the target write it (--regenerate)"
        )


def _turns(turns: object, key: str, regenerate: bool) -> tuple[Message, ...]:
    if isinstance(turns, Mapping):
        turns = _transposed(turns)
    if not isinstance(turns, list):
        raise Rejected(key, f"is {_kind(turns)}, not a list", "write a list of turns")
    if not turns:
        raise Rejected(key, "is empty", "add the turns, or remove the record")
    read = (_turn(turn, f"{key}[{index}]", regenerate) for index, turn in enumerate(turns))
    return tuple(message for message in read if message is not None)


def _turn(turn: object, key: str, regenerate: bool) -> Message | None:
    """One turn; None for an empty answer that will be written anew."""
    if not isinstance(turn, Mapping):
        raise Rejected(key, f"is {_kind(turn)}, not an object", "write {role, content}")
    role_key = "from" if turn.get("role") is None and "from" in turn else "role"
    content_key = "value" if turn.get("content") is None and "value" in turn else "content"
    role = _role(turn.get(role_key), f"{key}.{role_key}")
    if turn.get("tool_calls"):
        raise Rejected(f"{key}.tool_calls", "are not read", "remove the record, or prepare it with speculators")
    content = turn.get(content_key)
    if regenerate and role == "assistant" and content in (None, "", []):
        return None
    reasoning = turn.get("reasoning_content") or turn.get("thinking") or ""
    return Message(
        role,
        _text(content, f"{key}.{content_key}"),
        _text(reasoning, f"{key}.reasoning_content") if reasoning else "",
    )


def _role(role: object, key: str) -> Role:
    known = ROLES.get(role.lower()) if isinstance(role, str) else None
    if known is None:
        text = "is missing" if role is None else f"is {_shown(role)}, which is no known role"
        raise Rejected(key, text, "use system, user (human), assistant (gpt) or tool")
    return known


def _pair(record: Mapping[str, Any], regenerate: bool) -> tuple[Message, ...]:
    prompt_key = next((key for key in PROMPTS if record.get(key) is not None), None)
    response_key = next((key for key in RESPONSES if record.get(key) is not None), None)
    if prompt_key is None:
        found = sorted(str(key) for key in record)
        more = f" and {len(found) - NUM_KEYS_SHOWN} more" if len(found) > NUM_KEYS_SHOWN else ""
        raise Rejected(
            "",
            f"has no known shape: its keys are {', '.join(found[:NUM_KEYS_SHOWN]) or 'none'}{more}",
            f"known are {KNOWN_SHAPES}",
        )
    messages = []
    if record.get("system"):
        messages.append(Message("system", _text(record["system"], "system")))
    prompt = _text(record[prompt_key], prompt_key)
    if record.get("input"):  # Alpaca: the text that the instruction is about
        prompt = f"{prompt}\n\n{_text(record['input'], 'input')}"
    messages.append(Message("user", prompt))
    if response_key is not None and not (regenerate and record[response_key] == ""):
        messages.append(Message("assistant", _text(record[response_key], response_key)))
    return tuple(messages)


def _text(content: object, key: str) -> str:
    """The text of a turn: a string, or a list of parts of type text."""
    if isinstance(content, list):
        content = "".join(_part(part, f"{key}[{index}]") for index, part in enumerate(content))
    if content is None:
        raise Rejected(key, "is missing", "write the text, or remove the record")
    if not isinstance(content, str):
        raise Rejected(key, f"is {_kind(content)}, not text", "write a string")
    if not content.strip():
        raise Rejected(key, "is empty", "write the text, or remove the record")
    try:
        content.encode()
    except UnicodeEncodeError:
        raise Rejected(key, "holds half of a surrogate pair", "repair the character, or remove the record") from None
    return content


def _part(part: object, key: str) -> str:
    if isinstance(part, str):
        return part
    kind = part.get("type", "unknown") if isinstance(part, Mapping) else _kind(part)
    if isinstance(part, Mapping) and kind == "text" and isinstance(part.get("text"), str):
        return str(part["text"])
    raise Rejected(key, f"is a part of type {kind}", "only text is read: remove the record")


def _transposed(turns: Mapping[str, Any]) -> object:
    """A table's struct of lists, {role: [...], content: [...]}, as a list of turns; anything else as it is."""
    columns = {key: value for key, value in turns.items() if isinstance(value, list)}
    if not columns or len({len(column) for column in columns.values()}) != 1:
        return turns
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _kind(value: object) -> str:
    names = {str: "text", bool: "true or false", int: "a number", float: "a number", list: "a list", dict: "an object"}
    return "null" if value is None else names.get(type(value), type(value).__name__)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
