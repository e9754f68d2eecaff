"""A vLLM server of a command's own on this machine, up for as long as a block lasts."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from dspark_train.engine.server import VllmServer
from dspark_train.store.ports import AddressInUse, reserve_port

HOST = "127.0.0.1"
NUM_PORT_ATTEMPTS = 3
Command = tuple[Sequence[str], Mapping[str, str]]
"""argv, and what is added to the environment."""


@contextlib.contextmanager
def local_server(command: Callable[[int], Command], log: Path, timeout_s: float) -> Iterator[VllmServer]:
    """Serve on a reserved port, on another one where somebody else took it; ended with the block.

    command: for a port of ``HOST``. Raises StartError.
    """
    for attempt in range(1, NUM_PORT_ATTEMPTS + 1):
        with contextlib.ExitStack() as stack:
            lock = reserve_port()
            stack.callback(lock.release)
            argv, env = command(lock.port)
            server = stack.enter_context(VllmServer(argv, env, log, f"http://{HOST}:{lock.port}"))
            try:
                server.start(timeout_s)
            except AddressInUse:
                if attempt == NUM_PORT_ATTEMPTS:
                    raise
                continue
            yield server
            return
