"""A measured process: a module of this package run as a child and asked for one thing at a time, in lines of JSON.

`Child` is the asking side, `serve` the child's main loop. Whatever libraries print there goes to the child's log.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dspark_train.errors import DSparkError, StartError

ANSWER_TIMEOUT_S = 300.0
END_TIMEOUT_S = 10.0
NUM_LAST_LINES = 15
Answer = dict[str, Any]


class Child:
    """``python -m MODULE`` with pipes. Close it; twice is fine."""

    def __init__(self, module: str, log: Path, env: Mapping[str, str] | None = None) -> None:
        """env: added to this process's environment."""
        self._module, self._log = module, log
        with log.open("ab") as stream:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stream,
                env={**os.environ, **(env or {})},
                text=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, what: str, **fields: Any) -> Answer:
        """Have the child do ``what``; its answer. Raises StartError where it fails, ends, or takes too long."""
        self.begin(what, **fields)
        return self.end()

    def begin(self, what: str, **fields: Any) -> None:
        """As :meth:`ask`, without waiting: the answer is fetched by :meth:`end`."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"what": what, **fields}) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise self._failed("ended") from error

    def end(self, timeout_s: float = ANSWER_TIMEOUT_S) -> Answer:
        """The answer to what was begun last."""
        assert self._process.stdout is not None
        watch = threading.Timer(timeout_s, self._process.kill)
        watch.start()
        try:
            line = self._process.stdout.readline()
        finally:
            watch.cancel()
        if not line:
            raise self._failed("ended, or took too long")
        answer: Answer = json.loads(line)
        if "error" in answer:
            raise self._failed(str(answer["error"]))
        return answer

    def close(self) -> None:
        """End it."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _failed(self, why: str) -> StartError:
        lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()[-NUM_LAST_LINES:]
        return StartError(f"{self._module}: {why}", str(self._log), lines)


def serve(handlers: Mapping[str, Callable[..., Answer]]) -> None:
    """Answer until standard input ends, then end the process at once: a native client may hang at its own end."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        fields = json.loads(line)
        try:
            answer = handlers[fields.pop("what")](**fields)
        except DSparkError as error:
            answer = {"error": str(error)}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
    os._exit(0)


def cpu_s() -> float:
    """CPU seconds of this process and of its ended children, all threads."""
    own, ended = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return own.ru_utime + own.ru_stime + ended.ru_utime + ended.ru_stime


def proportional_bytes(pid: int) -> int:
    """Memory of a process in which pages shared by several count in parts; 0 where it has ended."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii")
    except OSError:
        return 0
    return next(int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith("Pss:"))
