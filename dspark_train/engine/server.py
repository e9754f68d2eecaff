"""One `vllm serve` process as a child: start, readiness, root cause of a failure, end.

Knows nothing of runs, ledgers or stores; `prepare` uses it as well.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx

from dspark_train.errors import StartError
from dspark_train.store.child import ChildProcess
from dspark_train.store.ports import AddressInUse

HEALTH_POLL_S = 0.25
HEALTH_TIMEOUT_S = 2.0
STOP_GRACE_S = 10.0
NUM_LAST_LINES = 20
NUM_SEARCHED_LINES = 400

_ADDRESS_IN_USE = re.compile(r"address already in use|EADDRINUSE|errno 98\b", re.IGNORECASE)
_RECOGNISED = (
    re.compile(r"(?:[\w.]+\.)?OutOfMemoryError\b.*"),
    re.compile(r".*(?:\bout of memory\b|Cannot allocate memory).*", re.IGNORECASE),
    re.compile(r".*No available memory for the cache blocks.*"),
    re.compile(r".*KV cache is needed, which is larger than the available KV cache memory.*"),
    re.compile(r".*is not a local folder and is not a valid model identifier.*"),
    re.compile(r".*unrecognized arguments.*"),
)
_ERROR = re.compile(r"(?:[\w.]+\.)?\w*(?:Error|Exception)\b: .*")
_CONSEQUENCE = re.compile(r"Engine core initialization failed|WorkerProc initialization failed")


def root_cause(lines: Sequence[str]) -> str:
    """The line of a log that says why vLLM ended, "" where none is recognised.

    vLLM ends with "Engine core initialization failed"; the cause stands far above, behind the prefix of its process.
    """
    for pattern in _RECOGNISED:
        for line in lines:
            if match := pattern.search(line):
                return match.group(0).strip()
    found = [match.group(0).strip() for line in lines if (match := _ERROR.search(line))]
    return next((text for text in found if not _CONSEQUENCE.search(text)), found[-1] if found else "")


class VllmServer:
    """`vllm serve` in a process group of its own.

    argv: the whole command, "python" meaning this interpreter. env: added to this process's environment.
    base_url: ``http://address:port`` of its API, "" for a follower that has none (``--headless``).
    As a context manager it stops the child on leaving; starting is a call of its own.
    """

    def __init__(self, argv: Sequence[str], env: Mapping[str, str], log: Path, base_url: str) -> None:
        self.base_url = base_url.rstrip("/")
        self._child = ChildProcess(argv, env, log)
        self._started_at_s = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop(STOP_GRACE_S)

    @property
    def pid(self) -> int:
        """Process id of the API server; 0 before the start."""
        return self._child.pid

    @property
    def log(self) -> Path:
        return self._child.log

    def alive(self) -> bool:
        return self._child.alive()

    def exit_code(self) -> int | None:
        """None while it runs; negative: ended by that signal."""
        return self._child.exit_code()

    def start(self, timeout_s: float) -> None:
        """Start the child and wait until /health answers; a follower is left to its leader's /health.

        Raises StartError (AddressInUse where a port was taken) with the log's last lines; the child is ended then.
        """
        self._started_at_s = time.monotonic()
        self._child.start()
        if not self.base_url:
            return
        try:
            self._wait_healthy(self._started_at_s + timeout_s, timeout_s)
        except BaseException:
            self._child.stop(STOP_GRACE_S)
            raise

    def stop(self, grace_s: float) -> None:
        """End the whole process group; twice is fine."""
        self._child.stop(grace_s)

    def failure(self, what: str) -> StartError:
        """An error with the root cause in the log, where one is recognised, before the log's last lines."""
        return StartError(what, str(self.log), self._telling_lines(self._child.last_lines(NUM_SEARCHED_LINES)))

    def exited(self) -> StartError:
        """The error for a child that ended by itself; AddressInUse where a port was taken."""
        age_s = time.monotonic() - self._started_at_s
        lines = self._child.last_lines(NUM_SEARCHED_LINES)
        kind = AddressInUse if any(_ADDRESS_IN_USE.search(line) for line in lines) else StartError
        what = f"vllm serve exited with code {self.exit_code()} after {age_s:.0f} s"
        return kind(what, str(self.log), self._telling_lines(lines))

    @staticmethod
    def _telling_lines(lines: Sequence[str]) -> list[str]:
        cause = root_cause(lines)
        return ([cause] if cause else []) + list(lines[-NUM_LAST_LINES:])

    def _wait_healthy(self, deadline_s: float, timeout_s: float) -> None:
        with httpx.Client(timeout=HEALTH_TIMEOUT_S, trust_env=False) as client:
            while time.monotonic() < deadline_s:
                if self._child.wait(HEALTH_POLL_S):
                    raise self.exited()
                if httpx.URL(self.base_url).port not in self._child.listening_ports():
                    continue  # who answers there is not ours
                try:
                    if client.get(f"{self.base_url}/health").status_code == httpx.codes.OK:
                        return
                except httpx.TransportError:
                    continue
        raise self.failure(f"vllm serve was not healthy at {self.base_url} within {timeout_s:g} s")
