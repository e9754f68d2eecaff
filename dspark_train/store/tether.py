"""Run as a script between a child's start and its program: ties the child's whole process group to its owner's life.

The owner holds the write end of a pipe. A watcher, in a session of its own, reads the other end: end of file means that
the owner died, however it died, and the group is ended; one byte means that the owner has dealt with the group itself.
PR_SET_PDEATHSIG would not do: it reaches the first process only, and fires when the *thread* that forked ends, which
in an actor is a pool's thread.

Standard library only; run with ``-I -S`` so that it costs milliseconds.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time

POLL_S = 0.1


def group_alive(group: int) -> bool:
    """Whether a process of the group runs. Zombies, which nobody may be reaping, do not count."""
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            with open(f"/proc/{entry}/stat", "rb") as stat:
                fields = stat.read().rpartition(b")")[2].split()
        except OSError:
            continue
        if int(fields[2]) == group and fields[0] not in (b"Z", b"X"):
            return True
    return False


def signal_group(group: int, number: signal.Signals) -> None:
    """Signal every process of the group; none left is fine."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, number)


def end_group(group: int, grace_s: float) -> None:
    """End the group: asked first, killed after ``grace_s``."""
    signal_group(group, signal.SIGTERM)
    deadline = time.monotonic() + grace_s
    while group_alive(group) and time.monotonic() < deadline:
        time.sleep(POLL_S)
    signal_group(group, signal.SIGKILL)


def watch(pipe: int, group: int, grace_s: float) -> None:
    """Wait for the owner's word or death."""
    if os.read(pipe, 1) == b"":
        print(f"the owner of process group {group} is gone: ending the group", flush=True)
        end_group(group, grace_s)


def run(pipe: int, grace_s: float, command: list[str]) -> None:
    """Leave a watcher behind and become ``command``."""
    group = os.getpid()
    middle = os.fork()
    if middle == 0:
        os.setsid()
        if os.fork() == 0:
            own = [sys.executable, "-I", "-S", os.path.abspath(__file__)]
            os.execv(sys.executable, [*own, "watch", str(pipe), str(group), str(grace_s)])
        os._exit(0)
    os.waitpid(middle, 0)
    os.close(pipe)
    try:
        os.execv(command[0], command)
    except OSError as error:
        print(f"{command[0]} cannot be run: {error}", flush=True)
        os._exit(127)


def main(argv: list[str]) -> None:
    """``run PIPE GRACE_S PROGRAM...`` or ``watch PIPE GROUP GRACE_S``."""
    if argv[0] == "watch":
        watch(int(argv[1]), int(argv[2]), float(argv[3]))
    else:
        run(int(argv[1]), float(argv[2]), argv[3:])


if __name__ == "__main__":
    main(sys.argv[1:])
