"""A chat template that a test can compute by hand: one token a byte."""

from typing import Any

BEGIN, END = 1, 2
ROLES = {"system": 3, "user": 4, "assistant": 5}
FIRST_BYTE = 10
"""The byte b of a text is the token FIRST_BYTE + b."""


def render(path: str, body: dict[str, Any]) -> tuple[int, object]:
    """A chat template of one token a byte: BEGIN role text END, and BEGIN assistant where an answer is asked for."""
    assert path == "/v1/chat/completions/render"
    ids = []
    for turn in body["messages"]:
        ids += [BEGIN, ROLES[turn["role"]], *(FIRST_BYTE + b for b in turn["content"].encode()), END]
    if body.get("add_generation_prompt"):
        ids += [BEGIN, ROLES["assistant"]]
    return 200, {"token_ids": ids[: body.get("truncate_prompt_tokens")]}
