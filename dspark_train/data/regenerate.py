"""The target writes every assistant turn itself, through an OpenAI-compatible server: on-policy training data.

A draft learns to guess what its target says, so answers of the target teach it more than answers of anybody else.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx

from dspark_train.data.answers import AnswersFile
from dspark_train.data.conversation import Conversation, Message
from dspark_train.errors import DSparkError, Problem

MAX_FAILED_IN_A_ROW = 32
"""So many conversations failing one after the other mean that the server is gone, not that they are odd."""
BACK_OFF_S = 0.5
NUM_CHARS_SHOWN = 200
_TRANSIENT = {httpx.codes.REQUEST_TIMEOUT, httpx.codes.TOO_MANY_REQUESTS}


class RegenerationFailed(DSparkError):
    """The server does not answer any more; what it had written is kept."""


@dataclass(frozen=True)
class Sampling:
    """How the target writes. temperature: off: as its generation_config says. max_tokens: of one answer.

    seed: of all; one of its own is derived for every answer.
    """

    temperature: float | None
    max_tokens: int
    seed: int


@dataclass(frozen=True)
class Server:
    """Where the target is asked. timeout_s: of one request. num_attempts: at one request, where failing may pass."""

    base_url: str
    model: str
    concurrency: int = 32
    timeout_s: float = 300.0
    num_attempts: int = 3


@dataclass
class Regenerated:
    """What came of it. ``conversations`` are in input order.

    num_reused: taken from the file of an earlier attempt. num_cut: answers that ended at max_tokens.
    """

    conversations: tuple[Conversation, ...] = ()
    failed: list[Problem] = field(default_factory=list)
    num_empty: int = 0
    num_reused: int = 0
    num_cut: int = 0
    num_tokens: int = 0


class _Failed(Exception):
    """One request that did not bring an answer; the text says why."""


async def regenerate(
    conversations: Sequence[Conversation],
    server: Server,
    sampling: Sampling,
    answers: Path,
    on_progress: Callable[[int, Regenerated], None] = lambda num_done, so_far: None,
) -> Regenerated:
    """Have the target answer every user turn, history included, and drop what it cannot answer.

    answers: the file that answers are appended to as they come, and read from where an earlier attempt left them.
    on_progress: called with the number of conversations done, after each. Raises RegenerationFailed.
    """
    with AnswersFile(answers) as file:
        task = _Regeneration(conversations, server, sampling, file, on_progress)
        return await task.run()


def asked_of(conversation: Conversation, model: str, sampling: Sampling) -> str:
    """A digest of everything that the answers of a conversation follow from."""
    turns = [message.as_json() for message in conversation.messages if message.role != "assistant"]
    text = json.dumps([model, asdict(sampling), conversation.id, turns])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class _Regeneration:
    def __init__(
        self,
        conversations: Sequence[Conversation],
        server: Server,
        sampling: Sampling,
        file: AnswersFile,
        on_progress: Callable[[int, Regenerated], None],
    ) -> None:
        self._conversations, self._server, self._sampling = conversations, server, sampling
        self._file, self._on_progress = file, on_progress
        self._result = Regenerated()
        self._num_done = 0
        self._num_failed_in_a_row = 0

    async def run(self) -> Regenerated:
        left = iter(self._conversations)
        limits = httpx.Limits(max_connections=self._server.concurrency)
        # the deadline is _post's, over the whole request: httpx's own are for each of its phases
        async with httpx.AsyncClient(timeout=None, limits=limits, trust_env=False) as client:
            try:
                async with asyncio.TaskGroup() as group:
                    for _ in range(self._server.concurrency):
                        group.create_task(self._work(client, left))
            except* RegenerationFailed as failures:
                raise failures.exceptions[0] from None
        self._result.conversations = tuple(self._written())
        return self._result

    def _written(self) -> Iterator[Conversation]:
        for conversation in self._conversations:
            messages = self._file.get(conversation.id, asked_of(conversation, self._server.model, self._sampling))
            if messages is not None:
                yield replace(conversation, messages=messages)

    async def _work(self, client: httpx.AsyncClient, left: Iterator[Conversation]) -> None:
        """Take one conversation after the other until none is left."""
        for conversation in left:
            digest = asked_of(conversation, self._server.model, self._sampling)
            if self._file.get(conversation.id, digest) is not None:
                self._result.num_reused += 1
            else:
                await self._regenerate_one(client, conversation, digest)
            self._num_done += 1
            self._on_progress(self._num_done, self._result)

    async def _regenerate_one(self, client: httpx.AsyncClient, conversation: Conversation, digest: str) -> None:
        try:
            messages = await self._answered(client, conversation)
        except _Failed as failure:
            self._count_failure(conversation, str(failure))
            return
        self._num_failed_in_a_row = 0
        if messages is None:
            self._result.num_empty += 1
        else:
            self._file.add(conversation.id, digest, conversation.domain, messages)

    def _count_failure(self, conversation: Conversation, reason: str) -> None:
        text = f"the target did not answer ({reason})"
        self._result.failed.append(Problem(conversation.file, conversation.line, "", text, "it was left out"))
        self._num_failed_in_a_row += 1
        if self._num_failed_in_a_row >= MAX_FAILED_IN_A_ROW:
            raise RegenerationFailed(
                f"the server at {self._server.base_url} failed {MAX_FAILED_IN_A_ROW} conversations in a row, the last "
                f"with: {reason}: look into its log; the answers so far are kept in {self._file.path} and reused"
            )

    async def _answered(self, client: httpx.AsyncClient, conversation: Conversation) -> tuple[Message, ...] | None:
        """All turns with new answers; None where the target had nothing to say."""
        asked = [message for message in conversation.messages if message.role != "assistant"]
        if any(message.role == "tool" for message in asked):
            raise _Failed("it holds results of tools, which the target did not ask for")
        turns: list[Message] = []
        for index, message in enumerate(conversation.messages):
            following = conversation.messages[index + 1 : index + 2]
            if message.role != "assistant":
                turns.append(message)
            if message.role == "user" and not (following and following[0].role == "user"):
                answer = await self._ask(client, turns, _seed(self._sampling.seed, conversation.id, len(turns)))
                if not answer.content.strip():
                    return None
                turns.append(answer)
        return tuple(turns)

    async def _ask(self, client: httpx.AsyncClient, turns: Sequence[Message], seed: int) -> Message:
        body: dict[str, Any] = {
            "model": self._server.model,
            "messages": [message.as_json() for message in turns],
            "max_tokens": self._sampling.max_tokens,
            "seed": seed,
        }
        if self._sampling.temperature is not None:
            body["temperature"] = self._sampling.temperature
        reply = await self._post(client, body)
        try:
            choice = reply["choices"][0]
            said = choice["message"]
            answer = Message("assistant", said["content"] or "", said.get("reasoning_content") or "")
            num_tokens = int(reply["usage"]["completion_tokens"])
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise _Failed(f"unknown form of reply: {str(reply)[:NUM_CHARS_SHOWN]}") from error
        self._result.num_cut += choice.get("finish_reason") == "length"
        self._result.num_tokens += num_tokens
        return answer

    async def _post(self, client: httpx.AsyncClient, body: dict[str, Any]) -> Any:
        """The reply as JSON, after bounded retries of what may pass. Raises _Failed."""
        reason = ""
        for attempt in range(self._server.num_attempts):
            if attempt:
                await asyncio.sleep(BACK_OFF_S * 2 ** (attempt - 1))
            try:
                async with asyncio.timeout(self._server.timeout_s):
                    response = await client.post(f"{self._server.base_url}/v1/chat/completions", json=body)
                if response.is_success:
                    return response.json()
            except TimeoutError:
                raise _Failed(f"no answer within {self._server.timeout_s:g} s") from None
            except (httpx.TransportError, ValueError) as error:
                reason = f"{type(error).__name__} {error}".strip()
                continue
            reason = f"HTTP {response.status_code}: {response.text[:NUM_CHARS_SHOWN]}"
            if response.is_client_error and response.status_code not in _TRANSIENT:
                break
        raise _Failed(reason)


def _seed(seed: int, name: str, turn: int) -> int:
    """A seed for one answer, the same whatever the order of requests."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{name}/{turn}".encode()).digest()[:4], "big")
