"""A child process that cannot outlive its owner, with its log. Used for the store's master and for engines.

Owns start, exit code, last lines and end of one process group. Knows nothing of what runs in it.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from signal import SIGKILL

import psutil

from dspark_train.errors import StartError
from dspark_train.store import tether

OWNER_GONE_GRACE_S = 10.0
KILLED_WAIT_S = 10.0
TAIL_BYTES = 65536
_SECRET = re.compile(r"key|token|secret|passw|credential", re.IGNORECASE)


def find_program(name: str) -> str:
    """Absolute path of a program: "python" is this interpreter; others lie beside it or on PATH.

    Raises StartError where there is none.
    """
    if name in ("python", "python3"):
        return sys.executable
    beside = Path(sys.executable).parent / name
    found = str(beside) if os.access(beside, os.X_OK) and beside.is_file() else shutil.which(name)
    if not found:
        raise StartError(f"{name} is neither beside {sys.executable} nor on PATH: install the package that carries it")
    return found


def describe(argv: Sequence[str], env: Mapping[str, str]) -> str:
    """The command as a shell would take it, on one line and with secrets redacted; for a log's header."""
    words = [f"{name}={'***' if _SECRET.search(name) else value}" for name, value in sorted(env.items())]
    hide = False
    for word in argv:
        name, equals, _ = word.partition("=")
        secret = word.startswith("-") and bool(_SECRET.search(name)) and "tokens" not in name
        words.append("***" if hide else f"{name}=***" if secret and equals else word)
        hide = secret and not equals
    return shlex.join(words).replace("\n", "\\n")


class ChildProcess:
    """One child in its own session. Its group ends when it ends, when it is stopped, or when this process dies.

    env: added to this process's environment. log: appended to, with a header for each start.
    """

    def __init__(self, argv: Sequence[str], env: Mapping[str, str], log: Path) -> None:
        self.argv, self.env, self.log = tuple(argv), dict(env), log
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe = -1
        self._log_start = 0
        self._ended = threading.Event()
        self._lock = threading.Lock()

    def start(self) -> None:
        """Start the program, once. Raises StartError where it does not exist."""
        program = find_program(self.argv[0])
        self.log.parent.mkdir(parents=True, exist_ok=True)
        read_end, self._pipe = os.pipe()
        tied = [sys.executable, "-I", "-S", tether.__file__, "run", str(read_end), str(OWNER_GONE_GRACE_S)]
        with self.log.open("ab") as stream:
            header = f"=== {datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ} {describe(self.argv, self.env)}\n"
            stream.write(header.encode())
            stream.flush()
            self._log_start = stream.tell()
            self._process = subprocess.Popen(
                [*tied, program, *self.argv[1:]],
                env={**os.environ, **self.env},
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                pass_fds=(read_end,),
                start_new_session=True,
            )
        os.close(read_end)
        threading.Thread(target=self._reap, args=(self._process,), name=f"reap-{self.pid}", daemon=True).start()

    @property
    def pid(self) -> int:
        """Process id of the program, and of its group; 0 before the start."""
        return self._process.pid if self._process else 0

    def exit_code(self) -> int | None:
        """None while it runs; negative: ended by that signal."""
        return self._process.returncode if self._process and self._ended.is_set() else None

    def alive(self) -> bool:
        return self._process is not None and not self._ended.is_set()

    def wait(self, timeout_s: float) -> bool:
        """Whether it ended within ``timeout_s``."""
        return self._ended.wait(timeout_s)

    def listening_ports(self) -> set[int]:
        """TCP ports on which the program itself listens."""
        try:
            connections = psutil.Process(self.pid).net_connections("tcp") if self.alive() else []
        except psutil.Error:
            return set()
        return {connection.laddr.port for connection in connections if connection.status == psutil.CONN_LISTEN}

    def last_lines(self, num_lines: int = 20) -> list[str]:
        """The end of what this start has logged, header left out."""
        if not self.log.is_file():
            return []
        with self.log.open("rb") as stream:
            end = stream.seek(0, os.SEEK_END)
            start = self._log_start if self._log_start <= end else 0  # it was rotated since
            stream.seek(max(start, end - TAIL_BYTES))
            lines = stream.read().decode(errors="replace").splitlines()
        return [line for line in lines if line.strip()][-num_lines:]

    def stop(self, grace_s: float) -> None:
        """Ask the program to end, then kill its whole group after ``grace_s``. Twice is fine, before the start too."""
        with self._lock:
            if self._process and self.alive():
                self._process.terminate()
                if not self._ended.wait(grace_s):
                    tether.signal_group(self.pid, SIGKILL)
                    self._ended.wait(KILLED_WAIT_S)

    def _reap(self, process: subprocess.Popen[bytes]) -> None:
        """Collect the exit code and end what the program left of its group, at once: later the id may be reused."""
        process.wait()
        tether.signal_group(process.pid, SIGKILL)
        with contextlib.suppress(BrokenPipeError):  # ended before its watcher was up
            os.write(self._pipe, b"q")
        os.close(self._pipe)
        self._ended.set()
