"""The lab itself: hosts reach each other until a link is cut, and nothing of a lab outlives its owner."""

from __future__ import annotations

import os
import re
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

DATAGRAMS = 1000
COUNT = """
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind(("", 7001)); s.settimeout(2); print("up", flush=True)
num = 0
try:
    while True: s.recv(100); num += 1
except TimeoutError: print(num)
"""
SEND = f"""
import socket, sys, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for _ in range({DATAGRAMS}): s.sendto(b"x", (sys.argv[1], 7001)); time.sleep(0.0002)
"""
TRANSFER_S = 3.0
SINK = """
import socket, time
c = socket.create_server(("", 7002)).accept; print("up", flush=True); c = c()[0]; began = time.monotonic(); num = 0
while got := c.recv(1 << 20): num += len(got)
print(num / 1e6 / (time.monotonic() - began))
"""
SOURCE = f"""
import socket, sys, time
s = socket.create_connection((sys.argv[1], 7002)); until = time.monotonic() + {TRANSFER_S}
while time.monotonic() < until: s.sendall(bytes(1 << 16))
"""
LINKS = {"no relay": (0.0, 0.0), "no delay": (0.001, 0.0), "5 ms each way": (5.0, 0.0), "20 ms, 1 % lost": (20.0, 1.0)}
"""What is measured -> delay in ms, loss in percent."""
bad_links = pytest.mark.skipif(bool(network.cannot_impair()), reason=network.cannot_impair())


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


def arrived(from_host: network.Host, to_host: network.Host) -> int:
    """How many of `DATAGRAMS` get there."""
    with subprocess.Popen(to_host.argv([sys.executable, "-c", COUNT]), stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        from_host.run(sys.executable, "-c", SEND, to_host.address)
        return int(process.stdout.read())


def links(lab: str) -> list[str]:
    """A lab's network devices that are left."""
    return [path.name for path in Path("/sys/class/net").iterdir() if re.fullmatch(f"{lab}(v.*)?", path.name)]


def test_a_link_is_cut_and_healed(pair: network.Lab, server: network.Host) -> None:
    other = pair.hosts[1]
    assert reach(other, server) is not None
    server.cut()
    assert reach(other, server) is None
    server.heal()
    assert reach(other, server) is not None


@bad_links
def test_what_a_host_sends_and_gets_is_delayed(pair: network.Lab, server: network.Host) -> None:
    server.impair(delay_ms=200)
    took_s = reach(pair.hosts[1], server)
    assert took_s is not None
    assert took_s > 0.4
    server.impair()
    took_s = reach(pair.hosts[1], server)
    assert took_s is not None
    assert took_s < 0.2


@bad_links
def test_some_of_what_a_host_sends_and_gets_is_lost(pair: network.Lab, server: network.Host) -> None:
    other = pair.hosts[1]
    assert arrived(other, server) == arrived(server, other) == DATAGRAMS
    server.impair(loss_percent=20)
    shares = [arrived(other, server) / DATAGRAMS, arrived(server, other) / DATAGRAMS]
    print(f"\nof datagrams over a link that loses 20 %, {shares[0]:.1%} arrive there and {shares[1]:.1%} from there")
    assert all(0.7 < share < 0.9 for share in shares)


@bad_links
def test_a_bad_link_is_cut_and_healed(pair: network.Lab, server: network.Host) -> None:
    other = pair.hosts[1]
    server.impair(delay_ms=20)
    server.cut()
    assert reach(other, server) is None
    server.impair()
    assert reach(other, server) is None
    server.impair(delay_ms=20)
    assert reach(other, server) is None
    server.heal()
    took_s = reach(other, server)
    assert took_s is not None
    assert took_s > 0.04


@bad_links
def test_a_bad_link_carries_a_transfer(pair: network.Lab) -> None:
    receiver, sender = pair.hosts
    rates = {}
    for name, (delay_ms, loss_percent) in LINKS.items():
        receiver.impair(delay_ms, loss_percent)
        with subprocess.Popen(receiver.argv([sys.executable, "-c", SINK]), stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            process.stdout.readline()
            done = sender.run(sys.executable, "-c", SOURCE, receiver.address)
            assert done.returncode == 0, done.stderr
            rates[name] = float(process.stdout.readline())
    pair.heal()
    print("".join(f"\n{name}: {rate:.1f} MB/s" for name, rate in rates.items()))
    assert min(rates.values()) > 0.01


def test_a_killed_host_has_no_process_left(pair: network.Lab, server: network.Host) -> None:
    assert server.pids()
    server.kill()
    assert server.pids() == []
    assert reach(pair.hosts[1], server) is None


def test_nothing_of_a_lab_outlives_an_owner_that_is_killed(pair: network.Lab) -> None:
    bad = "" if network.cannot_impair() else "host.impair(1)\n"
    code = (
        f"from tests.lab.network import Lab; import subprocess, time; lab = Lab(1); host = lab.hosts[0]\n{bad}"
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
    while left := [one for one in network._namespaces() if one.startswith(name)] + links(name.partition("-")[0]):
        assert time.monotonic() < deadline_s, f"still there: {left}"
        time.sleep(network.POLL_S)
    assert not (Path("/tmp") / name).exists()
