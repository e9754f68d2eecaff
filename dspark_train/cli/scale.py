"""`dspark-train scale`: change how many engines and ranks a run has, while it goes on."""

from __future__ import annotations

import json as json_module
import time
from typing import Annotated, Any

import typer

from dspark_train.cli.runs import find_run
from dspark_train.errors import DSparkError, Unreachable, UsageError
from dspark_train.plan.run_layout import RunLayout
from dspark_train.report import state_file

ORDER_TIMEOUT_S = 10.0
LOST_AFTER_S = 60.0
"""A controller that dies is started again; one silent for so long is lost."""
POLL_S = 0.3


class ScaleFailed(DSparkError):
    """The transaction was rolled back, or refused for now."""


def command(
    run: Annotated[str | None, typer.Argument(help="Name or directory of the run; the newest if left out.")] = None,
    inference: Annotated[str | None, typer.Option(help="Engines: +1, -1, or how many there shall be.")] = None,
    trainers: Annotated[str | None, typer.Option(help="Ranks: +2, -1, or how many there shall be.")] = None,
    drain: Annotated[
        list[str] | None, typer.Option(metavar="NODE", help="Leave a node (address, Ray id); may be repeated.")
    ] = None,
    undrain: Annotated[
        list[str] | None, typer.Option(metavar="NODE", help="A drained node may be used again; may be repeated.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would start and stop; change nothing.")] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Return when it is done, or rolled back.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Start or stop engines and ranks while the run goes on. One transaction: done as a whole, or rolled back.

    Example: dspark-train scale --inference +1 --wait

    Engines come and go without a pause. Ranks change at a step boundary. The pools stay as they are set until
    `dspark-train rebalance auto`. A drained node is empty of the run once the order is done: what was on it is up on
    other nodes before it goes, where there is room; with a smaller pool, those on the node are the ones that go.
    """
    if inference is None and trainers is None and not drain and not undrain:
        raise UsageError("nothing to scale: give --inference, --trainers or --drain, such as --inference +1")
    layout = find_run(run)
    state = state_file.current(layout)
    if state is None or state.is_terminal:
        raise UsageError(f"run {layout.name} is not running" + (f": it is {state.state}" if state else ""))
    body: dict[str, object] = {"inference": inference, "trainers": trainers, "dry_run": dry_run}
    body |= {"drain": drain or [], "undrain": undrain or []}
    made = _order(layout, state.controller.url, body)
    if wait and not dry_run and made["state"] == "running":
        if not json:
            _print(made, dry_run)
        made = {**made, **_wait(layout, str(made["id"]))}
        if not json:
            print(_outcome(made))
    elif not json:
        _print(made, dry_run)
    if json:
        print(json_module.dumps(made))
    if made["state"] == "rolled back":
        raise ScaleFailed(f"{made['id']} was rolled back: {made['reason']}")


def _order(layout: RunLayout, url: str, body: dict[str, object]) -> dict[str, Any]:
    status, text = state_file.call(layout, url, "POST", "/v1/scale", body=body, timeout_s=ORDER_TIMEOUT_S)
    if status == 200:
        made: dict[str, Any] = json_module.loads(text)
        return made
    if status == 0:
        raise Unreachable(f"the controller of {layout.name} does not answer: {text}; see `dspark-train status`")
    try:
        reason = str(json_module.loads(text)["detail"])
    except (ValueError, KeyError):
        reason = f"HTTP {status}: {text[:300]}"
    raise UsageError(reason) if status == 422 else ScaleFailed(reason)


def _wait(layout: RunLayout, ident: str) -> dict[str, Any]:
    """Follow a transaction to its end. Raises Unreachable, ScaleFailed."""
    heard_s = time.monotonic()
    while True:
        state = state_file.current(layout)
        found = state.transaction if state is not None else None
        if state is not None and state.state != "lost":
            heard_s = time.monotonic()
        if found and found["id"] == ident and found["state"] != "running":
            return found
        if state is None or state.is_terminal:
            raise ScaleFailed(f"run {layout.name} ended before {ident} was done")
        if time.monotonic() - heard_s > LOST_AFTER_S:
            raise Unreachable(f"the controller of {layout.name} has not answered for {LOST_AFTER_S:.0f} s")
        time.sleep(POLL_S)


def _print(made: dict[str, Any], dry_run: bool) -> None:
    changes = [f"{pool} {made['num_from'][pool]} -> {num}" for pool, num in made["num_to"].items()]
    changes += [f"away from {address}" for address in made["drains"].values()] or ["nodes opened"] * (not changes)
    print(
        f"{'would do' if dry_run else made['id']}: {', '.join(changes)}"
        + (f" ({made['reason']})" * bool(made["reason"]))
    )
    for word in ("starts", "stops"):
        for process in made[word]:
            print(f"  {word} {process['name']} on {process['node']}")
    pause_s = made["expected_pause_s"]
    print(f"  pause of training: {'not measured yet' if pause_s is None else f'{pause_s:.1f} s'}")


def _outcome(made: dict[str, Any]) -> str:
    if made["state"] != "done":
        return f"{made['id']}: {made['state']}"
    pause_s = made["pause_s"]
    return f"{made['id']}: done" + (f"; training stood still for {pause_s:.2f} s" if pause_s else "; no step waited")
