"""Members for the conformance tests; built in processes of the cluster, so they live in an importable module."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from typing import Any

from dspark_train.errors import FileProblems, Problem, StartError
from dspark_train.peers import Peers


class AwkwardError(Exception):
    """Pickles, but does not come back."""

    def __init__(self, left: int, right: int) -> None:
        super().__init__(f"{left}/{right}")


class Counter:
    """Counts; calls others; fails in several ways."""

    def __init__(self, start: int, peers: Peers) -> None:
        print("counter is built", flush=True)
        self._value, self._peers = start, peers
        self._released = threading.Event()

    def add(self, by: int) -> int:
        self._value += by
        return self._value

    async def add_async(self, by: int) -> int:
        await asyncio.sleep(0)
        return self.add(by)

    def ask(self, name: str, by: int) -> int:
        return int(self._peers.call(name, "add", by, timeout_s=10.0))

    async def ask_async(self, name: str, by: int) -> int:
        return int(await self._peers.acall(name, "add_async", by, timeout_s=10.0))

    def members(self) -> list[str]:
        return list(self._peers.list())  # type: ignore[attr-defined]  # peers of a member are its whole cluster

    def facts(self) -> dict[str, Any]:
        return {"pid": os.getpid(), "env": os.environ.get("DSPARK_TEST"), "at_import": AT_IMPORT}

    def wait_for_release(self) -> str:
        assert self._released.wait(20.0)
        return "released"

    def release(self) -> None:
        self._released.set()

    async def wait_cancelled(self) -> None:
        try:
            await asyncio.sleep(20.0)
        except asyncio.CancelledError:
            self._value = -1
            raise

    def sleep(self, time_s: float) -> None:
        time.sleep(time_s)

    def fail(self, how: str) -> Any:
        if how == "ours":
            raise StartError("engine-1 died", "logs/engine-1.log", ("out of memory", "bye"))
        if how == "plain":
            raise KeyError("no such thing")
        if how == "timeout":
            raise TimeoutError("of its own")
        if how == "awkward":
            raise AwkwardError(1, 2)
        if how == "file":
            raise FileProblems([Problem("a.yaml", 1, "k", "is wrong", "fix it")])
        return lambda: None

    def print_both(self, text: str) -> None:
        print(f"out {text}", flush=True)
        print(f"err {text}", file=sys.stderr, flush=True)
        os.system(f"echo child {text}")

    def die(self) -> None:
        os._exit(7)

    def _private(self) -> None: ...


class Unbuildable:
    """Cannot be made."""

    def __init__(self, peers: Peers) -> None:
        print("about to fail", flush=True)
        raise StartError("no model here")


AT_IMPORT = os.environ.get("DSPARK_TEST")
