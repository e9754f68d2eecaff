"""The whole line on a lab's hosts: the command line runs on one of them, the run's members on all."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import psutil

from dspark_train.controller import journal
from dspark_train.report.state import TERMINAL
from tests.lab.network import Host
from tests.lab.ray_nodes import RayNodes
from tests.real.line import LAUNCH_TIMEOUT_S, MARK, Line

POLL_S = 0.1
MEMBER_TITLE = "ray::MemberActor"
CHILDREN = ("serve", "mooncake_master")
"""What tells the children of members from Ray's own processes."""


@dataclass
class LabLine(Line):
    """A `Line` whose cluster is a lab's."""

    nodes: RayNodes | None = None

    @property
    def hosts(self) -> list[Host]:
        assert self.nodes is not None
        return self.nodes.lab.hosts

    def run(self, *args: str, timeout_s: float = LAUNCH_TIMEOUT_S, on: int = 0) -> subprocess.CompletedProcess[str]:
        """One command line, on the first host unless told otherwise."""
        assert self.nodes is not None
        own = {"DSPARK_RUNS": str(self.root / "runs"), MARK: self.mark, "COLUMNS": "120"}
        return subprocess.run(
            self.hosts[on].argv([sys.executable, "-m", "dspark_train.cli.app", *args]),
            env={**self.nodes.full_env, **own, "RAY_ADDRESS": self.nodes.address},
            cwd=self.root,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def begin(self, name: str, *sets: str, options: tuple[str, ...] = ()) -> None:
        """Launch, and return once the run is on its way."""
        done = self.launch(name, *sets, options=("--detach", *options))
        assert done.returncode == 0, done.stdout + done.stderr

    def state(self, name: str) -> dict[str, Any]:
        """`state.json`, {} where there is none."""
        try:
            return dict(json.loads((self.root / "runs" / name / "state.json").read_text(encoding="utf-8")))
        except FileNotFoundError:
            return {}

    def events(self, name: str, kind: str = "") -> list[dict[str, Any]]:
        """The journal, or its events of one kind."""
        return [
            event for event in journal.read(self.root / "runs" / name / "events.jsonl") if kind in ("", event["kind"])
        ]

    def wait_until(self, name: str, holds: Callable[[], object], timeout_s: float, what: str) -> float:
        """Seconds until ``holds``. Raises AssertionError with the run's files where it does not, or the run ends."""
        began_s = time.monotonic()
        while not holds():
            over = self.state(name).get("state") in TERMINAL and not holds()
            assert not over, f"the run ended before: {what}\n{self.tail(name)}"
            assert time.monotonic() - began_s < timeout_s, f"not within {timeout_s:g} s: {what}\n{self.tail(name)}"
            time.sleep(POLL_S)
        return time.monotonic() - began_s

    def ended(self, name: str, timeout_s: float = LAUNCH_TIMEOUT_S) -> dict[str, Any]:
        """The last state of the run, once it is over."""
        self.wait_until(name, lambda: self.state(name).get("state") in TERMINAL, timeout_s, "the run's end")
        return self.state(name)

    def members_on(self, host: Host) -> list[psutil.Process]:
        """Processes of runs on a host: members and their children, none of Ray's own."""
        found = []
        for pid in host.pids():
            try:
                process = psutil.Process(pid)
                words = process.cmdline()
            except psutil.NoSuchProcess:
                continue
            if words and (words[0].startswith(MEMBER_TITLE) or any(word.endswith(CHILDREN) for word in words[:6])):
                found.append(process)
        return found

    def wait_empty(self, timeout_s: float = 30.0) -> None:
        """Until no member is left on any host."""
        deadline_s = time.monotonic() + timeout_s
        while left := [process for host in self.hosts for process in self.members_on(host)]:
            assert time.monotonic() < deadline_s, f"left running: {[p.cmdline()[:6] for p in left if p.is_running()]}"
            time.sleep(POLL_S)


def differences(steps: list[dict[str, Any]], reference: list[dict[str, Any]], loss_within: float) -> list[str]:
    """Where two runs' steps are not the same: other steps, other data, or losses further apart than ``loss_within``."""
    found = []
    if [step["step"] for step in steps] != [step["step"] for step in reference]:
        found.append(f"the steps are {[step['step'] for step in steps]}")
    for step, like in zip(steps, reference, strict=False):
        if step["data_hash"] != like["data_hash"]:
            found.append(f"step {step['step']} trained on other data")
        if abs(step["loss"] / like["loss"] - 1) > loss_within:
            found.append(f"step {step['step']}: loss {step['loss']}, in the reference {like['loss']}")
    return found
