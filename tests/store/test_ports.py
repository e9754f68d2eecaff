import socket
import subprocess
import sys

import pytest

from dspark_train.store import ports
from dspark_train.store.ports import PortLock, lock_directory, reserve_known, reserve_port, reserve_ports

HOLDER = """
from dspark_train.store.ports import reserve_port
lock = reserve_port()
print(lock.port, flush=True)
input()
"""


def test_a_reserved_port_is_refused_to_others_until_it_is_released():
    lock = reserve_port()
    with pytest.raises(OSError, match="unavailable"):
        PortLock(lock.port, lock_directory())
    lock.release()
    lock.release()
    PortLock(lock.port, lock_directory()).release()


def test_a_port_on_which_somebody_listens_is_not_reserved(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        monkeypatch.setattr(ports, "port_range", lambda: range(port, port + 1))
        with pytest.raises(ports.StartError, match=f"no free port on .* in {port}-{port}"):
            reserve_port()


def test_a_reservation_ends_with_its_process():
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        port = int(holder.stdout.readline())
        with pytest.raises(OSError, match="unavailable"):
            PortLock(port, lock_directory())
        holder.kill()
    PortLock(port, lock_directory()).release()


def test_a_known_port_is_waited_for_and_lingering_connections_do_not_count():
    server = socket.create_server(("127.0.0.1", 0))
    port = server.getsockname()[1]
    with pytest.raises(ports.StartError, match=f"port {port} on .* has not come free within 0.2 s"):
        reserve_known(port, 0.2)
    client = socket.create_connection(("127.0.0.1", port))
    accepted, _ = server.accept()
    for one in (accepted, client, server):  # who closes first, here the server's side, keeps the connection lingering
        one.close()
    with pytest.raises(OSError, match="in use"):
        ports.bind_test(port)
    reserve_known(port, 5.0).release()


def test_ports_are_distinct_and_below_the_ephemeral_range():
    locks = reserve_ports(["api", "master", "rpc"])
    found = {lock.port for lock in locks.values()}
    assert len(found) == 3
    assert all(port in ports.port_range() for port in found)
    for lock in locks.values():
        lock.release()
