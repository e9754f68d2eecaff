"""What surrounds a member in its process: builds its object, and runs its methods. Knows no cluster software."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from dspark_train.cluster import log_rotation
from dspark_train.cluster.outcome import pack_error, pack_value, unpack_args
from dspark_train.cluster.protocol import MemberSpec
from dspark_train.errors import DSparkError
from dspark_train.peers import Peers

logger = logging.getLogger(__name__)
FENCED_GRACE_S = 10.0
"""What a fenced member gets to stop in order."""
MAX_CALLS = 1000
"""Calls of any kind that a member serves at once."""
LOG_TAIL_LINES = 15
LOG_TAIL_BYTES = 1 << 15


class Host:
    """Holds one member's object. An object that cannot be built is remembered: every call raises the reason."""

    def __init__(self, spec: MemberSpec, peers: Peers) -> None:
        self._spec = spec
        self._member: Any = None
        self._failure: bytes | None = None
        self._called_at_s = time.monotonic()
        if spec.log and spec.log_max_bytes:
            log_rotation.watch(Path(spec.log), spec.log_max_bytes, spec.log_keep)
        try:
            self._member = load_factory(spec.factory)(**spec.kwargs, peers=peers)
        except Exception as error:  # noqa: BLE001 - whatever the class raises is for the one who asked for it
            self._failure = pack_error(error)

    def built(self) -> bytes:
        """An outcome: None, or why the object could not be built."""
        return self._failure or pack_value(None)

    async def call(self, method: str, packed_args: bytes) -> bytes:
        """Run a method of the member; returns its outcome, to be unpacked by the caller."""
        self._called_at_s = time.monotonic()
        if self._failure is not None:
            return self._failure
        try:
            return pack_value(await self._run(method, unpack_args(packed_args)))
        except Exception as error:  # noqa: BLE001 - the caller gets it as its own
            return pack_error(error)

    def fence(self, end: Callable[[], None]) -> None:
        """Once nobody has called for the spec's ``fence_s``: stop the member, then ``end``. In a thread."""
        threading.Thread(target=self._fence, args=(end,), name="fence", daemon=True).start()

    def _fence(self, end: Callable[[], None]) -> None:
        limit_s = self._spec.fence_s
        while (left_s := self._called_at_s + limit_s - time.monotonic()) > 0:
            time.sleep(left_s)
        logger.error(
            "%s was not called for %g s: it is cut off, or its run is dead; it stops", self._spec.name, limit_s
        )
        stop = getattr(self._member, "stop", None)
        if stop is not None:
            _bounded(f"{self._spec.name}.stop", stop, FENCED_GRACE_S)
        end()

    async def _run(self, method: str, args: tuple[Any, ...]) -> Any:
        if method.startswith("_") or not hasattr(self._member, method):
            raise DSparkError(f"{self._spec.name} ({self._spec.factory}) has no method {method!r} for others to call")
        function = getattr(self._member, method)
        if inspect.iscoroutinefunction(function):
            return await function(*args)
        return await in_thread(f"{self._spec.name}.{method}", function, args)


def _bounded(name: str, stop: Callable[..., Any], grace_s: float) -> None:
    """Call a member's ``stop(grace_s)``, async or not, and wait at most twice as long."""

    def run() -> None:
        outcome = stop(grace_s)
        if inspect.isawaitable(outcome):
            asyncio.run(_await(outcome))

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    thread.join(2 * grace_s)


async def _await(outcome: Any) -> Any:
    return await outcome


async def in_thread(name: str, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """Run a blocking function in a thread of its own: a pool would fill with long polls, and wait for all at exit."""
    future: Future[Any] = Future()

    def run() -> None:
        future.set_running_or_notify_cancel()
        try:
            future.set_result(function(*args))
        except Exception as error:  # noqa: BLE001 - raised where the future is awaited
            future.set_exception(error)
        except BaseException as error:  # noqa: BLE001 - sys.exit() in a method must not end the whole member
            future.set_exception(DSparkError(f"{name} was left by {type(error).__name__}: {error}"))

    threading.Thread(target=run, name=name, daemon=True).start()
    return await asyncio.wrap_future(future)


def load_factory(path: str) -> Any:
    """The class behind "package.module:Class". Raises DSparkError naming what is wrong with it."""
    module, _, name = path.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise DSparkError(
            f"{path} cannot be imported here: {error}: is the same version installed on every node?"
        ) from error


def log_tail(path: str, num_lines: int = LOG_TAIL_LINES) -> Sequence[str]:
    """The last lines of a log; none where there is no log."""
    try:
        with Path(path).open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - LOG_TAIL_BYTES))
            return file.read().decode(errors="replace").splitlines()[-num_lines:]
    except OSError:
        return ()
