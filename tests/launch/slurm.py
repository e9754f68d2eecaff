"""A Slurm of the test's own on one machine: munged, slurmctld and several slurmd, all below one directory."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from dspark_train.store.ports import reserve_ports

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "sinfo")
SBIN = "/usr/sbin:/usr/local/sbin"
UP_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 20.0
CONFIG = """
ClusterName=test
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={controller}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={root}/munge.socket
CredType=cred/munge
StateSaveLocation={root}/state
SlurmdSpoolDir={root}/spool-%n
SlurmctldPidFile={root}/slurmctld.pid
SlurmdPidFile={root}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/linear
ReturnToService=2
SlurmctldTimeout=300
SlurmdTimeout=300
SlurmdParameters=config_overrides
KillWait=60
{nodes}
PartitionName=all Nodes=ALL Default=YES State=UP MaxTime=INFINITE
"""


def missing() -> str:
    """What this machine lacks for it; "" where nothing is."""
    if os.getuid() != 0:
        return "root"
    absent = [name for name in PROGRAMS if which(name) is None]
    return f"{', '.join(absent)} (Debian's slurm-wlm and munge)" if absent else ""


def which(program: str) -> str | None:
    return shutil.which(program, path=f"{os.environ['PATH']}:{SBIN}")


class Slurm:
    """A context: up inside of it, gone after it."""

    def __init__(self, root: Path, nodes: Sequence[str]) -> None:
        self.root, self._nodes = root, nodes
        self._stack = ExitStack()
        self.env = {**os.environ, "SLURM_CONF": str(root / "slurm.conf")}

    def __enter__(self) -> Slurm:
        with ExitStack() as stack:
            self._start(stack)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def run(self, *argv: str, env: dict[str, str] | None = None, timeout_s: float = 30.0) -> str:
        """A Slurm command's output. Raises AssertionError with what it said if it fails."""
        done = subprocess.run(
            argv, env=self.env | (env or {}), capture_output=True, text=True, timeout=timeout_s, check=False
        )
        assert done.returncode == 0, f"{argv}: {done.stdout}{done.stderr}\n{self.logs()}"
        return done.stdout

    def state_of(self, job: str) -> str:
        """COMPLETED, FAILED, RUNNING, ... of a job that Slurm still remembers."""
        text = self.run("scontrol", "show", "job", job)
        return text.split("JobState=")[1].split()[0]

    def logs(self) -> str:
        return "\n".join(f"--- {path.name}\n{path.read_text()[-1500:]}" for path in sorted(self.root.glob("*.log")))

    def _start(self, stack: ExitStack) -> None:
        names = ["controller", *self._nodes]
        locks = reserve_ports(names)
        for lock in locks.values():
            stack.callback(lock.release)
        lines = "\n".join(
            f"NodeName={node} NodeHostname=localhost NodeAddr=127.0.0.1 Port={locks[node].port} CPUs=2 RealMemory=4000"
            for node in self._nodes
        )
        config = CONFIG.format(root=self.root, controller=locks["controller"].port, nodes=lines)
        (self.root / "slurm.conf").write_text(config)
        for name in ("state", *(f"spool-{node}" for node in self._nodes)):
            (self.root / name).mkdir()
        self._munge(stack)
        self._daemon(stack, "slurmctld", "-D", "-f", str(self.root / "slurm.conf"))
        for node in self._nodes:
            self._daemon(stack, "slurmd", "-D", "-f", str(self.root / "slurm.conf"), "-N", node)
        self._until(self._all_idle, "the nodes are idle")

    def _munge(self, stack: ExitStack) -> None:
        key = self.root / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        files = ("key-file=munge.key", "socket=munge.socket", "pid-file=munge.pid", "seed-file=munge.seed")
        options = [f"--{name}={self.root}/{value}" for name, value in (file.split("=") for file in files)]
        self._daemon(stack, "munged", "--foreground", "--force", *options)
        self._until((self.root / "munge.socket").exists, "munged listens")

    def _daemon(self, stack: ExitStack, program: str, *args: str) -> None:
        log = self.root / f"{program}-{args[-1] if program == 'slurmd' else 0}.log"
        path = which(program)
        assert path is not None
        with log.open("wb") as file:
            daemon = subprocess.Popen([path, *args], stdout=file, stderr=file, env=self.env)
        stack.callback(_end, daemon)

    def _all_idle(self) -> bool:
        done = subprocess.run(["sinfo", "-h", "-o", "%T %D"], env=self.env, capture_output=True, text=True, check=False)
        return done.stdout.split() == ["idle", str(len(self._nodes))]

    def _until(self, condition: Callable[[], bool], what: str) -> None:
        deadline_s = time.monotonic() + UP_TIMEOUT_S
        while not condition():
            assert time.monotonic() < deadline_s, f"not within {UP_TIMEOUT_S:g} s: {what}\n{self.logs()}"
            time.sleep(0.3)


def _end(daemon: subprocess.Popen[bytes]) -> None:
    daemon.terminate()
    try:
        daemon.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        daemon.kill()
        daemon.wait()
