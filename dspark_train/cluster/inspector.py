"""A member that looks at the node it is on: its facts, the checks of one machine, and what it can send to others."""

from __future__ import annotations

import socket
import threading
import time
from typing import Any

from dspark_train.cluster.checks import Check, Finding, Need, run_checks
from dspark_train.cluster.collect import collect
from dspark_train.cluster.machine_checks import LOCAL_CHECKS, MACHINE_CHECKS
from dspark_train.cluster.node_facts import NodeFacts
from dspark_train.cluster.rack_rules import NODE_RULES, judge
from dspark_train.cluster.software_checks import SOFTWARE_CHECKS
from dspark_train.store.ports import reserve_ports

CHUNK_BYTES = 1 << 20
CONNECT_TIMEOUT_S = 3.0


class Inspector:
    """Made by `inspect_nodes` on each node, and ended by it. Everything that it opens is closed when it ends."""

    def __init__(self, need: Need, address: str, peers: Any) -> None:
        self._need, self._address = need, address

    def now_s(self) -> float:
        """The clock of this node."""
        return time.time()

    def look(self, runs_mark: str, loads: bool) -> tuple[NodeFacts, list[Finding]]:
        """The facts of this node, and what its checks find. loads: torch and vLLM as well, each in a process."""
        facts = collect(self._address, self._need.target, runs_mark)
        checks: tuple[Check, ...] = (*SOFTWARE_CHECKS, *MACHINE_CHECKS) if loads else LOCAL_CHECKS
        return facts, [*run_checks(checks, self._need), *judge(facts, self._need, NODE_RULES)]

    def listen(self, max_s: float) -> int:
        """Accept what others send, for at most ``max_s``. Returns the port, one of those that a run's parts use."""
        (lock,) = reserve_ports(["probe"]).values()
        server = socket.create_server((self._address, lock.port))
        server.settimeout(max_s)
        threading.Thread(target=_serve, args=(server, lock, time.monotonic() + max_s), daemon=True).start()
        return lock.port

    def send(self, address: str, port: int, num_bytes: int, max_s: float) -> float:
        """Send so much, or for so long; returns bytes a second that arrived. Raises OSError."""
        chunk = bytes(CHUNK_BYTES)
        with socket.create_connection((address, port), timeout=CONNECT_TIMEOUT_S) as connection:
            connection.settimeout(max_s + CONNECT_TIMEOUT_S)
            started_s, sent = time.monotonic(), 0
            while sent < num_bytes and time.monotonic() - started_s < max_s:
                connection.sendall(chunk)
                sent += len(chunk)
            connection.shutdown(socket.SHUT_WR)
            connection.recv(1)  # the other side has read all of it
            return sent / (time.monotonic() - started_s)


def _serve(server: socket.socket, lock: Any, until_s: float) -> None:
    buffer = bytearray(CHUNK_BYTES)
    try:
        while (left_s := until_s - time.monotonic()) > 0:
            server.settimeout(left_s)
            connection, _ = server.accept()
            with connection:
                connection.settimeout(left_s)
                while connection.recv_into(buffer):
                    pass
                connection.sendall(b".")
    except OSError:
        pass  # the time is over, or the sender is gone: it has the error to tell
    finally:
        server.close()
        lock.release()
