"""Rates that were measured, kept beside their topology as NAME.profile.json, and what they hold for. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path, PurePath
from typing import Any, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, JsonValue, ValidationError

from dspark_train.errors import Problem, ProfileError
from dspark_train.plan.redact import is_secret
from dspark_train.topology.resolve import Resolved
from dspark_train.topology.source import join

VERSION = 1
_UNTIMED = {
    *("lr", "weight_decay", "muon_lr", "muon_momentum", "muon_weight_decay", "muon_adjust_lr_fn"),
    *("scheduler_type", "scheduler_warmup_steps", "scheduler_warmup_ratio", "scheduler_total_steps"),
    *("scheduler_num_cosine_cycles", "ttt_step_loss_decay", "dflash_decay_gamma", "dpace_alpha", "step_weight_beta"),
    *("selector_loss_alpha", "confidence_head_alpha", "consistency_weight", "base_anchor_weight"),
}
"""Fields of `draft.train` that change what is learnt, and not how long it takes."""
_TOKEN_BYTES = "bytes_per_token"
Subject = dict[str, JsonValue]
"""What the rates depend on, by the keys of the topology where it has one."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Host(_Strict):
    """What it was measured on."""

    cpu: str
    num_cpus: int = Field(ge=1)
    gpus: tuple[str, ...] = ()
    versions: dict[str, str] = Field(default_factory=dict)

    def text(self) -> str:
        """In words, the GPUs where there are some."""
        if self.gpus:
            return f"{len(self.gpus)} x {self.gpus[0]}"
        return f"{self.cpu or 'an unknown CPU'} ({self.num_cpus} CPU{'s'[: self.num_cpus > 1]})"


class Profile(_Strict):
    """Rates of one engine, of one rank, and of the link where it was seen to be full; medians."""

    version: Literal[1]
    measured_at: AwareDatetime
    measured_by: str
    """Such as "bench pipeline", or the name of a run."""
    host: Host
    subject: Subject
    engine_tokens_per_s: float = Field(gt=0)
    rank_tokens_per_s: float = Field(gt=0)
    rank_packs: int = Field(ge=1)
    """Packs of a step that the rank had: the part of a step that no rank shortens weighs less in more packs."""
    link_bytes_per_s: float | None = Field(default=None, gt=0)


def profile_path(topology: Path) -> Path:
    """Where the profile of a topology lies: a.yaml has a.profile.json beside it."""
    return topology.with_suffix(".profile.json")


def subject_of(resolved: Resolved) -> Subject:
    """What the rates of this topology depend on. Secrets are left out."""
    topology = resolved.topology
    engines, trainers = topology.engines, topology.trainers
    train = {name: value for name, value in topology.draft.train.items() if name not in _UNTIMED}
    return {
        "target.model": _target(resolved),
        "target.layers": list(topology.target.layers),
        "target.dtype": resolved.hidden_dtype,
        _TOKEN_BYTES: resolved.bytes_per_token,
        "device": resolved.device,
        "mode": resolved.mode,
        "draft.algorithm": topology.draft.algorithm,
        "data.seq_len": topology.data.seq_len,
        "engines.entry": engines.entry,
        "engines.nodes_per_engine": engines.nodes_per_engine,
        "engines.tensor_parallel": engines.tensor_parallel,
        "engines.cpu_threads": engines.cpu_threads,
        "engines.num_writer_threads": resolved.num_writer_threads,
        "engines.max_in_flight": engines.max_in_flight,
        "engines.max_in_flight_tokens": engines.max_in_flight_tokens,
        "trainers.sharding": trainers.sharding,
        "trainers.cpu_threads": trainers.cpu_threads,
        "trainers.min_step_s": trainers.min_step_s,
        "store.protocol": topology.store.protocol,
        **_below("draft.train", train),
        **_below("engines.vllm", engines.vllm),
        **_below("engines.env", engines.env),
    }


def differences(measured: Subject, own: Subject) -> Iterator[str]:
    """In which fields a profile is another's, with both values; nothing where it is the topology's own."""
    for key in sorted(measured.keys() | own.keys()):
        if key == _TOKEN_BYTES and own.get(key) is None:
            continue  # the target's config.json is not here, and its name is compared
        if measured.get(key) != own.get(key):
            yield f"{key} {_shown(measured, key)}, not {_shown(own, key)}"


def parse(text: str, file: str, remedy: str) -> Profile:
    """The profile of a file. Raises ProfileError naming the first thing that is wrong, its key, and the remedy."""
    try:
        json.loads(text)
        return Profile.model_validate_json(text, strict=True)
    except json.JSONDecodeError as error:
        problem = Problem(file, error.lineno, "", f"is not JSON ({error.msg})", remedy)
    except RecursionError:
        problem = Problem(file, 0, "", "is nested too deeply", remedy)
    except ValidationError as error:
        detail = error.errors(include_url=False)[0]
        key = ""
        for part in detail["loc"]:
            key = join(key, part)
        problem = Problem(file, 0, key, _what_is_wrong(detail), remedy)
    raise ProfileError([problem])


def _what_is_wrong(detail: Any) -> str:
    if detail["type"] == "missing":
        return "is missing"
    if detail["type"] == "extra_forbidden":
        return "is not a known key"
    if not detail["loc"]:
        return "holds no object"
    shown = json.dumps(detail["input"], default=str)
    return f"is {shown[:60]}{'...' if len(shown) > 60 else ''} ({detail['msg'][:1].lower()}{detail['msg'][1:]})"


def _target(resolved: Resolved) -> str:
    """A hub's name; of a directory, which may be moved, a digest of its weights."""
    model = resolved.topology.target.model
    if PurePath(model).is_absolute() and resolved.facts.identity:
        return resolved.facts.identity
    return model


def _below(section: str, values: dict[str, Any]) -> Subject:
    return {f"{section}.{name}": value for name, value in values.items() if not is_secret(name)}


def _shown(subject: Subject, key: str) -> str:
    if subject.get(key) is None:
        return "left out"
    value = subject[key]
    return value if isinstance(value, str) else json.dumps(value)
