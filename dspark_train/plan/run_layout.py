"""Where everything of a run lies in its directory. Pure: paths only, nothing is read or made here."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class RunLayout:
    """The files of one run."""

    root: Path

    @property
    def name(self) -> str:
        return self.root.name

    @property
    def resolved(self) -> Path:
        """The resolved topology (`Resolved` as JSON): what the run really uses."""
        return self.root / "resolved.json"

    @property
    def topology(self) -> Path:
        """The topology as YAML, overrides included; can be launched again."""
        return self.root / "topology.yaml"

    @property
    def plan(self) -> Path:
        return self.root / "plan.json"

    @property
    def state(self) -> Path:
        """What `status` shows; replaced atomically."""
        return self.root / "state.json"

    @property
    def events(self) -> Path:
        """The journal, one JSON object a line, append-only."""
        return self.root / "events.jsonl"

    @property
    def metrics(self) -> Path:
        """One JSON object a committed step."""
        return self.root / "metrics.jsonl"

    @property
    def validation(self) -> Path:
        """One JSON object a validation round."""
        return self.root / "validation.jsonl"

    @property
    def history(self) -> Path:
        """The run over time in a bounded number of points (JSON); see `report.history`."""
        return self.root / "history.json"

    @property
    def report(self) -> Path:
        """The run's story, one self-contained HTML file."""
        return self.root / "report.html"

    @property
    def report_plots(self) -> Path:
        return self.root / "report.png"

    @property
    def serving(self) -> Path:
        """What `bench serving` measured (JSON), and its plots beside it."""
        return self.root / "serving.json"

    @property
    def serving_plots(self) -> Path:
        return self.root / "serving.png"

    @property
    def tensorboard(self) -> Path:
        return self.root / "tensorboard"

    def tracked(self, tracker: str) -> Path:
        """The newest steps that an experiment tracker was given (JSON)."""
        return self.root / f"tracked-{tracker}.json"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    def log(self, member: str) -> Path:
        return self.logs / f"{member}.log"

    @property
    def checkpoints(self) -> Path:
        return self.root / "checkpoints"

    @property
    def export(self) -> Path:
        return self.root / "export"

    @property
    def evaluations(self) -> Path:
        """What `eval` measured, a file a method."""
        return self.root / "eval"

    @property
    def token(self) -> Path:
        """Bearer token of the controller's HTTP API, mode 0600."""
        return self.root / "token"

    @property
    def cluster(self) -> Path:
        """How to reach the run's Ray cluster, and whether it is the run's own (JSON)."""
        return self.root / "cluster.json"

    @property
    def roster(self) -> Path:
        """Who is to run: what a controller that is started again goes on with."""
        return self.root / "roster.json"

    @property
    def throttle(self) -> Path:
        """Where engines or ranks are slowed on purpose; see `throttle.py`."""
        return self.root / "throttle.json"

    @property
    def traceback(self) -> Path:
        """Written on an error of ours (exit code 3)."""
        return self.root / "traceback.txt"
