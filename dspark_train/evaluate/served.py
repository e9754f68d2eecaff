"""Acceptance as a vLLM server counts it: prompts sent to it, and its own counters read before and after."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from dspark_train.errors import DSparkError, UsageError
from dspark_train.evaluate.acceptance import Acceptance
from dspark_train.evaluate.prompts import Prompt

METRICS_TIMEOUT_S = 10.0
SETTLE_S = 0.3
MAX_SETTLES = 20
_LINE = re.compile(r"^vllm:spec_decode_(\w+?)(?:_total)?\{(?P<labels>[^}]*)\} (?P<value>\S+)$")
_POSITION = re.compile(r'position="(\d+)"')


class ServerFailed(DSparkError):
    """The server did not answer a prompt, or shows no counters of drafts."""


@dataclass(frozen=True)
class Counters:
    """What a server has counted since its start, over all its engines. accepted: of each position."""

    num_drafts: int
    accepted: tuple[int, ...]

    def since(self, before: Counters) -> Counters:
        gained = tuple(now - was for now, was in zip(self.accepted, before.accepted, strict=True))
        return Counters(self.num_drafts - before.num_drafts, gained)


@dataclass(frozen=True)
class Requests:
    """How prompts are sent. temperature: 0 takes the most likely token."""

    base_url: str
    model: str
    temperature: float
    max_tokens: int
    seed: int
    concurrency: int = 8
    timeout_s: float = 600.0


@dataclass(frozen=True)
class Served:
    """Of one group of prompts: what the counters gained, and the new tokens of each prompt."""

    acceptance: Acceptance
    ids: tuple[tuple[int, ...], ...]


def parse_counters(text: str) -> Counters:
    """The speculative-decoding counters of vLLM's /metrics. Raises UsageError where it has none."""
    num_drafts, per_position, found = 0.0, dict[int, float](), False
    for line in text.splitlines():
        if match := _LINE.match(line):
            name, value = match.group(1), float(match.group("value"))
            position = _POSITION.search(match.group("labels"))
            if name == "num_drafts":
                num_drafts, found = num_drafts + value, True
            elif name == "num_accepted_tokens_per_pos" and position:
                place = int(position.group(1))
                per_position[place] = per_position.get(place, 0.0) + value
    if not found:
        raise UsageError("the server counts no drafts: start it with a draft (`dspark-train serve` prints how)")
    return Counters(int(num_drafts), tuple(int(per_position[place]) for place in sorted(per_position)))


def ask(requests: Requests, prompts: Sequence[Prompt]) -> Served:
    """Send prompts and read what the counters gained: nobody else may use the server meanwhile.

    Raises ServerFailed, UsageError.
    """
    before = _settled(requests.base_url)
    answers = asyncio.run(_all(requests, prompts))
    gained = _settled(requests.base_url).since(before)
    num_tokens = sum(len(ids) for ids in answers)
    return Served(Acceptance(gained.num_drafts, gained.accepted, num_tokens, len(prompts)), answers)


def _settled(base_url: str) -> Counters:
    """The counters once they stand still: the last step of an answered prompt is counted a moment after it."""
    last = _counters(base_url)
    for _ in range(MAX_SETTLES):
        time.sleep(SETTLE_S)
        now = _counters(base_url)
        if now == last:
            return now
        last = now
    raise ServerFailed(f"{base_url} goes on drafting: others use it, so its counters say nothing of these prompts")


def _counters(base_url: str) -> Counters:
    try:
        reply = httpx.get(f"{base_url}/metrics", timeout=METRICS_TIMEOUT_S, trust_env=False)
        return parse_counters(reply.raise_for_status().text)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise ServerFailed(f"{base_url}/metrics does not answer: {type(error).__name__} {error}") from error


async def _all(requests: Requests, prompts: Sequence[Prompt]) -> tuple[tuple[int, ...], ...]:
    gate = asyncio.Semaphore(requests.concurrency)
    async with httpx.AsyncClient(timeout=requests.timeout_s, trust_env=False) as client:

        async def one(prompt: Prompt) -> tuple[int, ...]:
            async with gate:
                return await _ask(client, requests, prompt)

        return tuple(await asyncio.gather(*(one(prompt) for prompt in prompts)))


async def _ask(client: httpx.AsyncClient, requests: Requests, prompt: Prompt) -> tuple[int, ...]:
    body: dict[str, Any] = {
        "model": requests.model,
        "prompt": list(prompt.ids),
        "max_tokens": requests.max_tokens,
        "temperature": requests.temperature,
        # what the target's generation_config may say otherwise
        "top_p": 1.0,
        "top_k": 0,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "return_token_ids": True,
    }
    if requests.temperature > 0:
        body["seed"] = (requests.seed * 1_000_003 + prompt.seed) % 2**31
    try:
        reply = await client.post(f"{requests.base_url}/v1/completions", json=body)
        return tuple(reply.raise_for_status().json()["choices"][0]["token_ids"])
    except (httpx.HTTPError, KeyError, IndexError, TypeError, ValueError) as error:
        raise ServerFailed(f"the server did not answer prompt {prompt.id}: {type(error).__name__} {error}") from error
