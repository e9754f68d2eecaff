"""Plain hosts: two sshd on loopback addresses are two hosts, and a whole run passes through them."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dspark_train.store.ports import reserve_ports
from tests.launch.conftest import ROOT
from tests.launch.inputs import NUM_STEPS
from tests.real.line import Line

SSHD = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin:/usr/bin")
ADDRESSES = ("127.0.0.2", "127.0.0.3")
START_TIMEOUT_S = 20.0

pytestmark = [
    pytest.mark.lab,
    pytest.mark.real,
    pytest.mark.timeout(900),
    pytest.mark.skipif(SSHD is None or os.getuid() != 0, reason="needs root and an sshd: make launchers installs one"),
]


@pytest.fixture
def hosts(short_tmp: Path, settings: dict[str, str]) -> Iterator[tuple[Path, dict[str, str]]]:
    """A hosts file of two sshd, and the environment of a launcher that may log in there."""
    locks = reserve_ports(["a", "b", "head"])
    (a, b, head) = (lock.port for lock in locks.values())
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", short_tmp / name], check=True)
    (short_tmp / "authorized").write_bytes((short_tmp / "user.pub").read_bytes())
    Path("/run/sshd").mkdir(exist_ok=True)
    daemons = [sshd(short_tmp, address, port) for address, port in zip(ADDRESSES, (a, b), strict=True)]
    lines = [
        f"ssh://root@{address}:{port} DSPARK_ADDRESS={address} DSPARK_NODE=n{number} PYTHONPATH={ROOT} "
        "OMP_NUM_THREADS=1"
        for number, (address, port) in enumerate(zip(ADDRESSES, (a, b), strict=True))
    ]
    path = short_tmp / "hosts"
    path.write_text("# the head first\n" + "\n".join(lines) + "\n")
    ssh = (
        f"ssh -F none -i {short_tmp}/user -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR"
    )
    try:
        yield path, {**os.environ, **settings, "DSPARK_SSH": ssh, "DSPARK_HEAD": f"{ADDRESSES[0]}:{head}"}
    finally:
        for daemon in daemons:
            daemon.terminate()
            daemon.wait(10)
        for lock in locks.values():
            lock.release()


def sshd(directory: Path, address: str, port: int) -> subprocess.Popen[bytes]:
    """An sshd of the test's own that lets in one key. Up when this returns."""
    options = {
        "ListenAddress": f"{address}:{port}",
        "HostKey": directory / "host",
        "AuthorizedKeysFile": directory / "authorized",
        "PidFile": "none",
        "StrictModes": "no",
        "UsePAM": "no",
        "PasswordAuthentication": "no",
        "PermitRootLogin": "prohibit-password",
    }
    argv = [str(SSHD), "-D", "-e", "-f", "/dev/null", *(f"-o{name}={value}" for name, value in options.items())]
    log = directory / f"sshd-{port}.log"
    daemon = subprocess.Popen(argv, stderr=log.open("wb"))
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while b"Server listening" not in log.read_bytes():
        assert daemon.poll() is None, log.read_text()
        assert time.monotonic() < deadline_s, log.read_text()
        time.sleep(0.1)
    return daemon


def launcher(script: str, *args: str, env: dict[str, str], timeout_s: float = 600) -> subprocess.CompletedProcess[str]:
    command = [str(ROOT / "launch" / "ssh" / script), *args]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=timeout_s, check=False)


def test_a_run_over_two_hosts_passes_through_ssh_and_leaves_nothing(
    line: Line, hosts: tuple[Path, dict[str, str]], short_tmp: Path
) -> None:
    path, env = hosts
    env["DSPARK_RUN"] = "ssh"
    done = launcher("up.sh", str(path), "--topology", str(line.topology_file), env=env)
    assert done.returncode == 0, done.stdout + done.stderr + line.tail("ssh")
    assert f"Ray is up at {env['DSPARK_HEAD']}: {' '.join(ADDRESSES)}" in done.stdout
    assert [step["step"] for step in line.steps("ssh")] == list(range(1, NUM_STEPS + 1))
    nodes = {member.split(".")[0] for member in members_of(line, "ssh")}
    assert nodes >= {"engine-1", "rank-0", "rank-1"}
    assert line.left() == []
    assert not list((short_tmp / "d").glob("*.token"))


def members_of(line: Line, name: str) -> list[str]:
    return [log.stem for log in (line.root / "runs" / name / "logs").glob("*.log")]


def test_a_host_that_cannot_be_reached_is_named_and_the_others_are_taken_down(
    line: Line, hosts: tuple[Path, dict[str, str]], short_tmp: Path
) -> None:
    path, env = hosts
    first = path.read_text().splitlines()[1]
    path.write_text(f"{first}\nssh://root@127.0.0.4:1\n")
    done = launcher("up.sh", str(path), env=env)
    assert done.returncode != 0
    assert "127.0.0.4 port 1: Connection refused" in done.stderr
    assert line.left() == []
