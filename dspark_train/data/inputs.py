"""What a data set follows from, so that a second `prepare` can tell whether the work is done already. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import Any

from dspark_train.data.conversation import Conversation
from dspark_train.data.prepare import Options
from dspark_train.data.regenerate import Sampling


@dataclass(frozen=True)
class Inputs:
    """digest: of everything. described: the same to be read, the conversations as a digest of their own."""

    digest: str
    described: dict[str, Any]


def inputs_of(conversations: Sequence[Conversation], options: Options, sampling: Sampling | None) -> Inputs:
    """sampling: how the target writes the answers; None: they are those of the files, and count as inputs."""
    hasher = hashlib.sha256()
    for conversation in conversations:
        turns = [turn.as_json() for turn in conversation.messages if sampling is None or turn.role != "assistant"]
        hasher.update(json.dumps([conversation.id, turns]).encode())
    described = {
        **asdict(options),
        "regenerate": asdict(sampling) if sampling else None,
        "conversations": hasher.hexdigest()[:16],
        "made_with": f"speculators {version('speculators')}",
    }
    digest = hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()
    return Inputs(digest, described)


def differences(now: Mapping[str, Any], before: Mapping[str, Any]) -> list[str]:
    """What changed, one phrase an option: ``seq_len 512 (was 1024)``."""
    keys = [key for key in now if key != "conversations" and now[key] != before.get(key)]
    changed = [f"{key} {json.dumps(now[key])} (was {json.dumps(before.get(key))})" for key in keys]
    # whether answers count as conversations depends on who writes them, so their digests are not comparable then
    comparable = bool(now.get("regenerate")) == bool(before.get("regenerate"))
    other = comparable and now.get("conversations") != before.get("conversations")
    return changed + ["other conversations"] * other
