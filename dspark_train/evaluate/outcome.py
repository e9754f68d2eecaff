"""The figures of one evaluation as one JSON object, and what is odd about them. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dspark_train.evaluate.acceptance import Acceptance, bucket_of, macro_accept_len, total
from dspark_train.evaluate.prompts import Prompt

MIN_VALIDATION_GAIN = 0.2
SUSPICIOUS_FRAC = 0.5
LENGTH_EDGES_TOKENS = (128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)


def by_domain(parts: Iterable[tuple[Prompt, Acceptance]]) -> dict[str, Acceptance]:
    """Sums of prompts that have the length of their file, by domain, in the order met."""
    found: dict[str, list[Acceptance]] = defaultdict(list)
    for prompt, part in parts:
        if not prompt.context_tokens:
            found[prompt.domain].append(part)
    return {domain: total(each) for domain, each in found.items()}


def by_length(parts: Iterable[tuple[Prompt, Acceptance]]) -> dict[str, Acceptance]:
    """Sums by the bucket that a prompt's length falls into, shortest first."""
    found: dict[str, list[Acceptance]] = defaultdict(list)
    for prompt, part in sorted(parts, key=lambda each: len(each[0].ids)):
        found[bucket_of(len(prompt.ids), LENGTH_EDGES_TOKENS)].append(part)
    return {bucket: total(each) for bucket, each in found.items()}


def figures(domains: Mapping[str, Acceptance], lengths: Mapping[str, Acceptance]) -> dict[str, Any]:
    """What every method says at one temperature."""
    whole = total(domains.values())
    return {
        "macro_accept_len": macro_accept_len(domains),
        "accept_len": whole.accept_len,
        "per_position": list(whole.per_position),
        "num_tokens": whole.num_tokens,
        "num_drafts": whole.num_drafts,
        "domains": {domain: part.as_json() for domain, part in domains.items()},
        "lengths": {bucket: part.as_json() for bucket, part in lengths.items()},
    }


def disagreement(one: float | None, other: float | None) -> float | None:
    """How far two acceptance lengths are apart, relative to the smaller; None where one is not known."""
    return None if one is None or other is None else abs(one - other) / min(one, other)


def suspicion(validation_accept_len: float | None, measured_accept_len: float | None) -> str:
    """Why a draft that validates well and drafts badly is suspicious; "" where the two fit.

    A draft trained on hidden states that the engine spoilt (all zero, off by a layer) learns them and validates well on
    more of them; with the target's true ones it drafts next to nothing.
    """
    if validation_accept_len is None or measured_accept_len is None:
        return ""
    validated, measured = validation_accept_len - 1, measured_accept_len - 1
    if validated < MIN_VALIDATION_GAIN or measured >= SUSPICIOUS_FRAC * validated:
        return ""
    return (
        f"validation promises an acceptance length of {validation_accept_len:.2f}, and {measured_accept_len:.2f} is "
        "reached: the draft may have been trained on hidden states that are not the target's (spoilt by the engine, or "
        "of other layers); compare one sample's with transformers' before training on"
    )


def last_validation(lines: Sequence[Mapping[str, Any]]) -> float | None:
    """The acceptance length at the last validation, greedy where it is known; None where there was none."""
    for line in reversed(lines):
        for key in ("eal", "accept_len"):
            if isinstance(line.get(key), int | float):
                return float(line[key])
    return None
