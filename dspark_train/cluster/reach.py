"""Asking a head that may be dead, with deadlines: Ray itself waits 60 s for one and then ends the asking process."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from typing import TypeVar

from dspark_train.errors import ClusterError

PROBE_TIMEOUT_S = 2.0
"""Opening a connection to the head."""
T = TypeVar("T")


def probe(address: str, timeout_s: float = PROBE_TIMEOUT_S) -> None:
    """Raise ClusterError if nobody listens at "host:port"."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=timeout_s).close()
    except (OSError, ValueError) as error:
        raise ClusterError(
            f"no Ray head answers at {address} ({error}): is the cluster up, the address right?"
        ) from error


def bounded(question: Callable[[], T], timeout_s: float, complaint: str) -> T:
    """Run ``question`` in a thread; raise ClusterError with ``complaint`` if it takes longer than ``timeout_s``."""
    answers: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            answers.append(question())
        except BaseException as error:  # noqa: BLE001 - carried over to the thread that asked
            errors.append(error)

    thread = threading.Thread(target=run, name="ask-ray", daemon=True)
    thread.start()
    thread.join(timeout_s)
    if errors:
        raise errors[0]
    if not answers:
        raise ClusterError(f"{complaint} within {timeout_s:g} s")
    return answers[0]
