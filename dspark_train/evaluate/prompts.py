"""What is evaluated on: prompts with a domain, as token ids of the target, short and behind long contexts."""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dspark_train.data.conversation import Conversation, Message
from dspark_train.data.conversations import read_conversations
from dspark_train.errors import UsageError

OWN_PROMPTS = Path(__file__).with_name("prompts.jsonl")
"""Nine domains; none of them stands in examples/prompts.jsonl, which the quickstart trains on."""
NO_DOMAIN = "all"
Encode = Callable[[Sequence[Message]], list[int]]
"""Messages to token ids, the start of the answer included."""


@dataclass(frozen=True)
class Prompt:
    """One question. context_tokens: how long it was to be made, 0 where it is as the file has it."""

    id: str
    domain: str
    ids: tuple[int, ...]
    context_tokens: int = 0

    @property
    def seed(self) -> int:
        """A number of its own, whatever other prompts there are."""
        return zlib.crc32(f"{self.id}/{self.context_tokens}".encode())


def read_prompts(paths: Sequence[str | Path], num_per_domain: int | None) -> tuple[Conversation, ...]:
    """Conversations of the files, in order, at most so many of a domain. Raises DataError, UsageError."""
    found = read_conversations(paths, regenerate=True).conversations
    taken: dict[str, int] = defaultdict(int)
    kept = []
    for conversation in found:
        taken[conversation.domain] += 1
        if num_per_domain is None or taken[conversation.domain] <= num_per_domain:
            kept.append(conversation)
    return tuple(kept)


def encode_prompts(conversations: Iterable[Conversation], encode: Encode, max_tokens: int) -> tuple[Prompt, ...]:
    """The first question of each conversation; those above ``max_tokens`` are left out."""
    prompts = [
        Prompt(each.id, each.domain or NO_DOMAIN, tuple(encode(question(each.messages)))) for each in conversations
    ]
    return tuple(prompt for prompt in prompts if len(prompt.ids) <= max_tokens)


def in_contexts(
    conversations: Sequence[Conversation], encode: Encode, context_tokens: int, max_tokens: int
) -> tuple[Prompt, ...]:
    """The first question of each conversation behind turns of the others, in order, up to ``context_tokens``.

    Only answered conversations serve as turns. Raises UsageError where too few are to fill a context by half, or where
    it leaves no room to answer.
    """
    if context_tokens > max_tokens:
        raise UsageError(f"--context-tokens {context_tokens} leaves no room: at most {max_tokens} fit this target")
    prompts = []
    for index, each in enumerate(conversations):
        others = [*conversations[index + 1 :], *conversations[:index]]
        turns = [_first_turns(other) for other in others if other.has_answer()]
        ids = _filled(question(each.messages), turns, encode, context_tokens)
        if len(ids) < context_tokens // 2:
            raise UsageError(
                f"the prompts with answers fill {len(ids)} of --context-tokens {context_tokens}: give a file with more"
            )
        prompts.append(Prompt(each.id, each.domain or NO_DOMAIN, tuple(ids), context_tokens))
    return tuple(prompts)


def question(messages: Sequence[Message]) -> tuple[Message, ...]:
    """What stands before the first answer."""
    answered = next((i for i, message in enumerate(messages) if message.role == "assistant"), len(messages))
    return tuple(messages[:answered])


def _first_turns(conversation: Conversation) -> tuple[Message, ...]:
    asked = question(conversation.messages)
    turns = (*asked, conversation.messages[len(asked)])
    return tuple(message for message in turns if message.role in ("user", "assistant"))


def _filled(
    asked: tuple[Message, ...], turns: Sequence[tuple[Message, ...]], encode: Encode, context_tokens: int
) -> list[int]:
    """As many turns before the question as fit, by bisection: their encoding is not the sum of its parts."""
    low, high = 0, len(turns)
    while low < high:
        middle = (low + high + 1) // 2
        history = [message for turn in turns[:middle] for message in turn]
        low, high = (middle, high) if len(encode((*history, *asked))) <= context_tokens else (low, middle - 1)
    return encode((*(message for turn in turns[:low] for message in turn), *asked))
