"""`dspark-train eval`: how much of what a draft proposes its target accepts."""

from __future__ import annotations

import json as json_module
import os
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from dspark_train.errors import UsageError

DEFAULT_LOADS = (1, 4, 16, 64)


class Method(StrEnum):
    """How acceptance is measured."""

    reference = "reference"
    served = "served"
    both = "both"


@dataclass(frozen=True)
class Asked:
    """The options of the command line. temperatures: the first one's figures stand at the top."""

    method: Method
    data: tuple[Path, ...]
    target: str | None
    other_target: bool
    step: int | None
    num_per_domain: int | None
    max_tokens: int
    temperatures: tuple[float, ...]
    draft_samples: bool
    num_tokens: int | None
    contexts_tokens: tuple[int, ...]
    batch_size: int
    seed: int
    loads: tuple[int, ...]
    endpoint: str
    threads: int
    calibrate: bool
    fold: bool
    trust_remote_code: bool


WhatOption = Annotated[
    str | None, typer.Argument(help="Run (name or directory) or export directory; the newest run if left out.")
]
MethodOption = Annotated[
    Method,
    typer.Option(help="reference: torch code, anywhere. served: a vLLM server's own counters. both: compare."),
]
DataOption = Annotated[
    list[Path] | None,
    typer.Option(help="Conversations with a domain field, repeatable; 36 of our own if left out."),
]
TemperatureOption = Annotated[
    list[float] | None, typer.Option(min=0, max=10, help="0: greedy; repeatable, say 0 and 1.")
]
DraftSamplesOption = Annotated[
    bool, typer.Option("--draft-samples", help="Above 0 the draft samples too, not only the target.")
]
ContextTokensOption = Annotated[
    list[int] | None, typer.Option(min=1, help="Also behind a context of so many tokens, repeatable.")
]
LoadOption = Annotated[
    list[int] | None, typer.Option(min=1, help="Requests at a time that trimming is estimated for, repeatable.")
]
CalibrateOption = Annotated[
    bool, typer.Option("--calibrate", help="Keep the confidence head's calibration with the export.")
]
FoldOption = Annotated[
    bool, typer.Option("--fold", help="With --calibrate: put the temperature into the head's weights, for vLLM.")
]


def command(
    what: WhatOption = None,
    method: MethodOption = Method.reference,
    data: DataOption = None,
    target: Annotated[str | None, typer.Option(help="The target, where the draft's own is not there any more.")] = None,
    other_target: Annotated[
        bool, typer.Option("--other-target", help="Allow a target of the same shape with other weights.")
    ] = False,
    step: Annotated[int | None, typer.Option(help="Checkpoint of the run; the newest if left out.")] = None,
    per_domain: Annotated[int | None, typer.Option(min=1, help="Prompts of each domain; all if left out.")] = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="Of each answer.")] = 128,
    temperature: TemperatureOption = None,
    draft_samples: DraftSamplesOption = False,
    num_tokens: Annotated[int | None, typer.Option(min=1, help="Drafted at a time; as trained if left out.")] = None,
    context_tokens: ContextTokensOption = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Prompts verified, or asked, at a time.")] = 16,
    seed: Annotated[int, typer.Option(help="Of sampling.")] = 0,
    load: LoadOption = None,
    endpoint: Annotated[str, typer.Option(help="served: a running vLLM server with the draft, nobody else's.")] = "",
    threads: Annotated[int | None, typer.Option(min=1, help="On CPU; one less than the cores if left out.")] = None,
    calibrate: CalibrateOption = False,
    fold: FoldOption = False,
    trust_remote_code: Annotated[bool, typer.Option("--trust-remote-code", help="Run the target's own code.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Measure acceptance: by domain, greedy and sampled, behind long contexts; and the confidence head's calibration.

    Example: dspark-train eval quickstart --temperature 0 --temperature 1
    """
    asked = Asked(
        method=method,
        data=tuple(data or ()),
        target=target,
        other_target=other_target,
        step=step,
        num_per_domain=per_domain,
        max_tokens=max_tokens,
        temperatures=tuple(dict.fromkeys(temperature or [0.0])),
        draft_samples=draft_samples,
        num_tokens=num_tokens,
        contexts_tokens=tuple(dict.fromkeys(context_tokens or ())),
        batch_size=batch_size,
        seed=seed,
        loads=tuple(load or DEFAULT_LOADS),
        endpoint=endpoint.rstrip("/"),
        threads=threads or max(1, len(os.sched_getaffinity(0)) - 1),
        calibrate=calibrate or fold,
        fold=fold,
        trust_remote_code=trust_remote_code,
    )
    _check(asked)
    _tell(what, asked, json)


def _tell(what: str | None, asked: Asked, json: bool) -> None:
    from dspark_train.cli.eval_run import evaluate
    from dspark_train.cli.eval_view import table

    found = evaluate(what, asked)
    if json:
        print(json_module.dumps(found))
        return
    for line in table(found):
        typer.echo(line)


def _check(asked: Asked) -> None:
    if asked.endpoint and asked.method is Method.reference:
        raise UsageError("--endpoint is for --method served or both: the reference asks no server")
    if asked.endpoint and asked.draft_samples:
        raise UsageError("--draft-samples says how a server of our own drafts: leave it out with --endpoint")
    if asked.calibrate and asked.method is Method.served:
        raise UsageError("--calibrate needs the confidences, which only the reference sees: --method reference or both")
