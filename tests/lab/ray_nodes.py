"""A Ray cluster over a lab's hosts, started as an operator would: `ray start` on each, one token for all."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.lab.network import Host, Lab

PORT = 6379
START_TIMEOUT_S = 180.0
POLL_S = 0.5
REJOIN_S = 10.0
"""A node that was called dead while it was cut off ends itself as soon as it hears of that."""
OBJECT_STORE_BYTES = 80 << 20
REPOSITORY = Path(__file__).parents[2]
FAST_DEATH = {
    # A node whose link is cut is called dead after 15 s and not after a minute.
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "2000",
    "RAY_health_check_failure_threshold": "5",
}


@dataclass
class RayNodes:
    """The Ray nodes of a lab, the head on its first host. Their processes end with the lab."""

    lab: Lab
    labels: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    """Host's number -> the labels that its node has."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Further environment of every node, and so of everything that runs there."""

    @property
    def address(self) -> str:
        """Where the head listens."""
        return f"{self.lab.hosts[0].address}:{PORT}"

    @property
    def token(self) -> Path:
        """The cluster's token, as a file of mode 0600."""
        path = self.lab.hosts[0].directory / "token"
        if not path.exists():
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                file.write(secrets.token_hex(32))
        return path

    @property
    def full_env(self) -> dict[str, str]:
        """The environment of a node, and of a command that is to reach the cluster."""
        own = {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(self.token),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
            "RAY_memory_monitor_refresh_ms": "0",
            "PYTHONPATH": str(REPOSITORY),
            "HF_HUB_OFFLINE": "1",
        }
        return {**os.environ, **own, **FAST_DEATH, **self.env}

    def start_all(self) -> None:
        """Start the head, then all others side by side, and wait until all have joined."""
        head, *others = self.lab.hosts
        self.begin(head).check()
        started = [self.begin(host) for host in others]
        for one in started:
            one.check()

    def begin(self, host: Host) -> Starting:
        """Start a host's node; the first host's is the head."""
        where = host.directory / f"ray-{time.time_ns() % 10**6}"
        labels = {"host": f"n{host.number}", **self.labels.get(host.number, {})}
        argv = ["start", f"--node-ip-address={host.address}", f"--temp-dir={where}", "--num-cpus=1"]
        argv += [
            f"--object-store-memory={OBJECT_STORE_BYTES}",
            f"--labels={_labels_text(labels)}",
            "--disable-usage-stats",
        ]
        if host.number == 1:
            argv += ["--head", f"--port={PORT}", "--include-dashboard=false"]
        else:
            argv += [f"--address={self.address}"]
        log = host.directory / "start.log"
        with log.open("ab") as stream:
            process = subprocess.Popen(
                host.argv([sys.executable, "-m", "ray.scripts.scripts", *argv]),
                env=self.full_env,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                start_new_session=True,
            )
        return Starting(process, log)

    def rejoin(self, host: Host) -> None:
        """Bring a host's node back as its service manager would: where it ended meanwhile, it is started again."""
        deadline_s = time.monotonic() + REJOIN_S
        while self._runs(host) and time.monotonic() < deadline_s:
            time.sleep(POLL_S)
        if not self._runs(host):
            host.kill()
            self.start(host)

    @staticmethod
    def _runs(host: Host) -> bool:
        return any(_name(pid) == "raylet" for pid in host.pids())

    def start(self, host: Host) -> None:
        """Start one host's node, and wait for it."""
        self.begin(host).check()


@dataclass
class Starting:
    """A node on its way up."""

    process: subprocess.Popen[bytes]
    log: Path

    def check(self) -> None:
        """Wait until it is up. Raises AssertionError with what it said."""
        code = self.process.wait(START_TIMEOUT_S)
        assert code == 0, f"ray start ended with {code}:\n{self.log.read_text(errors='replace')[-3000:]}"


def _labels_text(labels: Mapping[str, str]) -> str:
    return ",".join(f"{name}={value}" for name, value in labels.items())


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""
