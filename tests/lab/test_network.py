"""The lab itself: hosts reach each other until a link is cut, and nothing of a lab outlives its owner."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab import network

pytestmark = pytest.mark.lab

LISTEN = (
    "import socket; s = socket.create_server(('', 7000)); print('up', flush=True)\nwhile True: s.accept()[0].close()"
)
CONNECT = "import socket, sys, time; t = time.monotonic(); socket.create_connection((sys.argv[1], 7000), 1); "
CONNECT += "print(time.monotonic() - t)"


@pytest.fixture(scope="module")
def pair() -> Iterator[network.Lab]:
    if why := network.missing():
        pytest.skip(f"the lab {why}")
    with network.Lab(2) as lab:
        yield lab


@pytest.fixture
def server(pair: network.Lab) -> Iterator[network.Host]:
    """The first host, on which something listens."""
    host = pair.hosts[0]
    with subprocess.Popen(host.argv([sys.executable, "-c", LISTEN]), stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield host
        pair.heal()
        process.kill()


def reach(from_host: network.Host, to_host: network.Host) -> float | None:
    """Seconds that a connection takes, None where there is none."""
    done = from_host.run(sys.executable, "-c", CONNECT, to_host.address)
    return float(done.stdout) if done.returncode == 0 else None


def test_a_link_is_cut_and_healed(pair: network.Lab, server: network.Host) -> None:
    other = pair.hosts[1]
    assert reach(other, server) is not None
    server.cut()
    assert reach(other, server) is None
    server.heal()
    assert reach(other, server) is not None


def test_what_a_host_sends_is_delayed(pair: network.Lab, server: network.Host) -> None:
    if not network.has_netem():
        pytest.skip("this kernel has no netem, which delays and loses packets")
    server.impair(delay_ms=200)
    took_s = reach(pair.hosts[1], server)
    assert took_s is not None
    assert took_s > 0.2


def test_a_killed_host_has_no_process_left(pair: network.Lab, server: network.Host) -> None:
    assert server.pids()
    server.kill()
    assert server.pids() == []
    assert reach(pair.hosts[1], server) is None


def test_nothing_of_a_lab_outlives_an_owner_that_is_killed(pair: network.Lab) -> None:
    code = (
        "from tests.lab.network import Lab; import subprocess, time; lab = Lab(1); host = lab.hosts[0]\n"
        "subprocess.Popen(host.argv(['sleep', '1000']), start_new_session=True)\n"
        "print(host.name, flush=True); time.sleep(1000)"
    )
    owner = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, cwd=Path(__file__).parents[2])
    assert owner.stdout is not None
    name = owner.stdout.readline().decode().strip()
    assert name in network._namespaces()
    os.kill(owner.pid, signal.SIGKILL)
    owner.wait()
    owner.stdout.close()
    deadline_s = time.monotonic() + network.END_TIMEOUT_S
    while name in network._namespaces() or network._pids(name):
        assert time.monotonic() < deadline_s, f"{name} is still there: {network._pids(name)}"
        time.sleep(network.POLL_S)
    assert not (Path("/tmp") / name).exists()
