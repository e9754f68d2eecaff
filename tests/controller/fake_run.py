"""A run on a fake cluster whose members are stand-ins, driven as the command line would."""

import json
import time

from dspark_train.cluster.fake import LOCAL, FakeCluster
from dspark_train.cluster.protocol import MemberSpec
from dspark_train.plan.build import build_plan
from dspark_train.plan.run_layout import RunLayout
from dspark_train.report import state_file
from dspark_train.topology.facts import TargetFacts
from dspark_train.topology.load import load
from dspark_train.topology.resolve import resolve

FACTORIES = {
    kind: f"tests.controller.stand_ins:{kind.capitalize()}" for kind in ("ledger", "master", "engine", "rank")
} | {"controller": "dspark_train.controller.controller:Controller"}
TIMEOUT_S = 60.0
"""A disk that is busy with somebody else's gigabytes lets a small file wait for tens of seconds."""


class Run:
    """A run on a fake cluster."""

    def __init__(self, root, *overrides, nodes=(LOCAL,)):
        self.layout = RunLayout(root)
        self.layout.logs.mkdir()
        topology = load("topologies/quickstart.yaml", ["data.step_packs=4", "trainers.ranks.max=4", *overrides])
        resolved = resolve(topology, TargetFacts())
        self.layout.resolved.write_text(resolved.model_dump_json())
        self.layout.plan.write_text(build_plan(resolved).model_dump_json())
        self.cluster = FakeCluster(nodes)

    def fault(self, member, kind):
        (self.layout.root / f"fault-{member}").write_text(kind)

    def launch(self, resume=False):
        kwargs = {"run_dir": str(self.layout.root), "factories": FACTORIES, "linger_s": 0.0, "tick_s": 0.05}
        self.cluster.create(MemberSpec("controller", FACTORIES["controller"], kwargs, max_restarts=-1))
        self.cluster.call("controller", "launch", resume, timeout_s=TIMEOUT_S)

    def wait(self, phase):
        deadline_s = time.monotonic() + TIMEOUT_S
        while (state := state_file.read(self.layout.state)) is None or state.state != phase:
            assert time.monotonic() < deadline_s, f"never {phase}: {state}"
            assert state is None or not state.is_terminal, f"{state.state}: {state.reason}"
            threads_turn()
        return state

    def wait_empty(self):
        deadline_s = time.monotonic() + TIMEOUT_S
        while self.cluster.list():
            assert time.monotonic() < deadline_s, f"left: {self.cluster.list()}"
            threads_turn()

    def end(self, how):
        (self.layout.root / "ending").write_text(how)

    def until(self, holds):
        deadline_s = time.monotonic() + TIMEOUT_S
        while not holds():
            assert time.monotonic() < deadline_s, f"{self.state}\n{self.kinds}"
            assert not self.state.is_terminal, f"{self.state.state}: {self.state.reason}"
            threads_turn()

    def scale(self, *, dry_run=False, **orders):
        body = {"dry_run": dry_run, **orders}
        code, text = state_file.call(
            self.layout, self.state.controller.url, "POST", "/v1/scale", body=body, timeout_s=TIMEOUT_S
        )
        return code, json.loads(text)

    def scaled(self, **orders):
        """Order, and wait for the end."""
        code, made = self.scale(**orders)
        assert code == 200, made

        return self.ended(made["id"])

    def ended(self, ident):
        """The transaction, once it is over."""

        def is_over():
            now = self.state.transaction
            return now and now["id"] == ident and now["state"] != "running"

        self.until(is_over)
        return self.state.transaction

    def names(self, prefix):
        return [name for name in self.cluster.list() if name.startswith(prefix)]

    @property
    def state(self):
        return state_file.read(self.layout.state)

    @property
    def events(self):
        return [json.loads(line) for line in self.layout.events.read_text().splitlines()]

    @property
    def kinds(self):
        return [event["kind"] for event in self.events]

    @property
    def calls(self):
        return (self.layout.root / "calls").read_text().splitlines()


def threads_turn():
    time.sleep(0.01)
