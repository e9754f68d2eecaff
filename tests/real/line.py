"""The whole line on a tiny target, driven as a user would: by the command line, in processes of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import yaml

LAUNCH_TIMEOUT_S = 550.0
MARK = "DSPARK_TEST_MARK"


@dataclass
class Line:
    """A directory with a topology, and the commands run on it. Every process that comes of it carries a mark."""

    root: Path
    topology: dict[str, Any]
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)

    @property
    def topology_file(self) -> Path:
        path = self.root / "tiny.yaml"
        path.write_text(yaml.safe_dump(self.topology), encoding="utf-8")
        return path

    @property
    def env(self) -> dict[str, str]:
        return {**os.environ, "DSPARK_RUNS": str(self.root / "runs"), MARK: self.mark, "COLUMNS": "120"}

    def run(self, *args: str, timeout_s: float = LAUNCH_TIMEOUT_S) -> subprocess.CompletedProcess[str]:
        """One command line; output is kept."""
        return subprocess.run(
            [sys.executable, "-m", "dspark_train.cli.app", *args],
            env=self.env,
            cwd=self.root,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def launch(self, name: str, *sets: str, options: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
        overrides = [part for value in sets for part in ("--set", value)]
        return self.run("launch", "--topology", str(self.topology_file), "--name", name, *overrides, *options)

    def finish(self, name: str, *sets: str, options: tuple[str, ...] = ()) -> list[dict[str, Any]]:
        """Launch, expect it to end well, return its steps."""
        done = self.launch(name, *sets, options=options)
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{self.tail(name)}"
        return self.steps(name)

    def begin_with(self, name: str, num_steps: int, *sets: str) -> list[dict[str, Any]]:
        """Launch, stop once so many steps are done, return them and what came meanwhile."""
        done = self.launch(name, *sets, options=("--detach",))
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        self.wait_for(name, num_steps)
        self.run("stop", name, "--wait")
        return self.steps(name)

    def steps(self, name: str) -> list[dict[str, Any]]:
        path = self.root / "runs" / name / "metrics.jsonl"
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]

    def status(self, name: str) -> tuple[int, dict[str, Any]]:
        answer = self.run("status", name, "--json")
        return answer.returncode, json.loads(answer.stdout)

    def wait_for(self, name: str, step: int, timeout_s: float = LAUNCH_TIMEOUT_S) -> None:
        """Until the run has committed ``step``."""
        path = self.root / "runs" / name / "metrics.jsonl"
        deadline_s = time.monotonic() + timeout_s
        while not path.exists() or len(path.read_bytes().splitlines()) < step:
            assert time.monotonic() < deadline_s, f"step {step} did not come\n{self.tail(name)}"
            time.sleep(0.1)

    def tail(self, name: str) -> str:
        """What the run's own files say, for a failure's message."""
        root = self.root / "runs" / name
        files = [root / "events.jsonl", *sorted((root / "logs").glob("*.log"))]
        return "\n".join(f"--- {f.name}\n{f.read_text(errors='replace')[-1500:]}" for f in files if f.exists())

    def left(self, timeout_s: float = 15.0) -> list[str]:
        """Processes of this line that still run, after giving them a moment to go."""
        deadline_s = time.monotonic() + timeout_s
        while (found := self._marked()) and time.monotonic() < deadline_s:
            time.sleep(0.2)
        return found

    def _marked(self) -> list[str]:
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get(MARK) == self.mark and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(f"{process.pid} {' '.join(process.cmdline())[:150]}")
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
        return found

    def end_all(self) -> None:
        """Last resort after a failed test: end every marked process, by its id."""
        for text in self._marked():
            try:
                psutil.Process(int(text.split()[0])).kill()
            except psutil.NoSuchProcess:
                continue
