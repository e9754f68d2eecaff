"""`dspark-train rebalance`: whether the balance decides and acts, only advises, or is off."""

from __future__ import annotations

import json as json_module
from enum import StrEnum
from typing import Annotated

import typer

from dspark_train.cli.runs import find_run
from dspark_train.errors import Unreachable, UsageError
from dspark_train.report import state_file

ORDER_TIMEOUT_S = 10.0


class Mode(StrEnum):
    """As in the topology's `balance.mode`."""

    AUTO = "auto"
    ADVISE = "advise"
    OFF = "off"


def command(
    words: Annotated[list[str], typer.Argument(help="[RUN] auto|advise|off", metavar="[RUN] MODE")],
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Set the balance's mode. auto: decide and act, and unpin what `scale` has fixed; advise: decide and record.

    Example: dspark-train rebalance auto
    """
    if len(words) > 2 or words[-1] not in list(Mode):
        raise UsageError(f"{' '.join(words)}: say which mode: `dspark-train rebalance [RUN] auto|advise|off`")
    layout, mode = find_run(words[0] if len(words) == 2 else None), words[-1]
    state = state_file.current(layout)
    if state is None or state.is_terminal:
        raise UsageError(f"run {layout.name} is not running" + (f": it is {state.state}" if state else ""))
    body: dict[str, object] = {"mode": mode}
    status, text = state_file.call(
        layout, state.controller.url, "POST", "/v1/rebalance", body=body, timeout_s=ORDER_TIMEOUT_S
    )
    if status == 0:
        raise Unreachable(f"the controller of {layout.name} does not answer: {text}; see `dspark-train status`")
    if status != 200:
        raise UsageError(f"the controller of {layout.name} refused: {text[:300]}")
    before = state.mode
    print(json_module.dumps({"run": layout.name, "from": before, "mode": mode}) if json else f"{layout.name}: {mode}")
