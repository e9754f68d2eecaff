"""What the machine can do at most: a plain copy within memory, and a plain copy over loopback TCP."""

from __future__ import annotations

import ctypes
import multiprocessing
import socket
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection

CHUNK_BYTES = 1 << 20
CONNECT_TIMEOUT_S = 10.0


def copy_s(target: int, source: int, sizes: Sequence[int]) -> float:
    """Seconds that one thread takes to copy blocks of ``sizes`` bytes, one behind the other, between two addresses."""
    began_s = time.perf_counter()
    offset = 0
    for size in sizes:
        ctypes.memmove(target + offset, source + offset, size)
        offset += size
    return time.perf_counter() - began_s


def loopback_s(num_bytes: int, port: int) -> float:
    """Seconds to send so many bytes to another process over 127.0.0.1, received into memory; its last byte counts."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    receiver = context.Process(target=_receive, args=(port, num_bytes, theirs), daemon=True)
    receiver.start()
    ours.recv()
    data = bytes(min(num_bytes, 64 * CHUNK_BYTES))
    with socket.create_connection(("127.0.0.1", port), CONNECT_TIMEOUT_S) as connection:
        connection.settimeout(None)
        began_s, left = time.perf_counter(), num_bytes
        while left:
            part = memoryview(data)[: min(left, len(data))]
            connection.sendall(part)
            left -= len(part)
        connection.recv(1)
        took_s = time.perf_counter() - began_s
    receiver.join()
    return took_s


def _receive(port: int, num_bytes: int, told: Connection) -> None:
    target = memoryview(bytearray(num_bytes))
    with socket.create_server(("127.0.0.1", port)) as server:
        told.send("listening")
        connection, _ = server.accept()
        with connection:
            at = 0
            while at < num_bytes:
                at += connection.recv_into(target[at:], min(num_bytes - at, 16 * CHUNK_BYTES))
            connection.sendall(b"x")
