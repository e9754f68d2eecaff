"""A run on the fake cluster with its real controller and API: what the page, the API and the terminal are tried on."""

import json
import time
from pathlib import Path

from dspark_train.cluster.fake import FakeCluster
from dspark_train.cluster.protocol import MemberSpec
from dspark_train.plan.build import build_plan
from dspark_train.plan.run_layout import RunLayout
from dspark_train.report import state_file
from dspark_train.topology.facts import TargetFacts
from dspark_train.topology.load import load
from dspark_train.topology.resolve import resolve

TIMEOUT_S = 30.0
END_TIMEOUT_S = 90.0
"""The report is written at the end: matplotlib alone takes seconds to load."""
CONTROLLER = "dspark_train.controller.controller:Controller"
TOPOLOGY = Path(__file__).parents[2] / "topologies" / "quickstart.yaml"


class LiveRun:
    """Started when made; `end` it."""

    def __init__(self, root, *overrides):
        root.mkdir(parents=True, exist_ok=True)
        self.layout = RunLayout(root)
        self.layout.logs.mkdir(exist_ok=True)
        resolved = resolve(
            load(str(TOPOLOGY), ["data.step_packs=4", "trainers.ranks.max=4", *overrides]), TargetFacts()
        )
        self.layout.resolved.write_text(resolved.model_dump_json())
        self.layout.plan.write_text(build_plan(resolved).model_dump_json())
        for member in ("controller", "engine-1.0", "rank-0", "rank-1", "ledger", "master"):
            lines = (f"2026-01-01 12:00:{n % 60:02} INFO {member}: line {n}\n" for n in range(500))
            self.layout.log(member).write_text("".join(lines))
        self.cluster = FakeCluster()
        factories = {kind: f"tests.web.moving:{kind.capitalize()}" for kind in ("ledger", "master", "engine", "rank")}
        kwargs = {"run_dir": str(root), "factories": {**factories, "controller": CONTROLLER}, "linger_s": 0.0}
        self.cluster.create(MemberSpec("controller", CONTROLLER, {**kwargs, "tick_s": 0.1}, max_restarts=-1))
        self.cluster.call("controller", "launch", False, timeout_s=TIMEOUT_S)
        self.until(lambda: self.state and self.state.state == "running")

    @property
    def state(self):
        return state_file.read(self.layout.state)

    @property
    def url(self):
        return self.state.controller.url

    @property
    def token(self):
        return self.layout.token.read_text()

    @property
    def events(self):
        return [json.loads(line) for line in self.layout.events.read_text().splitlines()]

    def call(self, method, path, body=None):
        code, text = state_file.call(self.layout, self.url, method, path, body=body, timeout_s=TIMEOUT_S)
        return code, json.loads(text)

    def fault(self, member, kind):
        (self.layout.root / f"fault-{member}").write_text(kind)

    def heal(self, member):
        (self.layout.root / f"fault-{member}").unlink(missing_ok=True)

    def hold(self, member):
        """Let the member's next start take until `release`."""
        (self.layout.root / f"slow-{member}").touch()

    def release(self, member):
        (self.layout.root / f"slow-{member}").unlink()

    def until(self, holds, timeout_s=TIMEOUT_S):
        deadline_s = time.monotonic() + timeout_s
        while not holds():
            assert time.monotonic() < deadline_s, f"not so within {timeout_s:.0f} s; the run: {self.state}"
            time.sleep(0.02)

    def end(self):
        (self.layout.root / "ending").write_text("done")
        self.until(lambda: not self.cluster.list(), END_TIMEOUT_S)
        self.cluster.end_all()
