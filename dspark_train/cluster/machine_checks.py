"""Checks of the machine itself: the memory, disk, limits, ports, clock and GPUs that a run needs."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import time
from pathlib import Path

import psutil

import dspark_train
from dspark_train.cluster.checks import GIB, Check, Need, Outcome
from dspark_train.store.ports import port_range, reserve_ports

SHM = Path("/dev/shm")
MIN_SHM_BYTES = GIB // 4
"""Ray's object store, at 100 MiB, and what vLLM's processes pass each other."""
MIN_MEMORY_BYTES = 6 * GIB
"""The smallest engine (3.1 GB), one rank (1.3 GB) and Ray (0.7 GB), as measured on CPU."""
MIN_DISK_BYTES = 5 * GIB
MIN_OPEN_FILES = 4096
"""An engine and its clients hold hundreds of sockets; Ray warns below this too."""
NUM_TEST_PORTS = 8
SMI_TIMEOUT_S = 20.0


def check_memory(need: Need) -> Outcome:
    """Memory is free for everything that the run puts on one machine."""
    memory = psutil.virtual_memory()
    wanted = need.memory_bytes or MIN_MEMORY_BYTES
    text = f"{gib(memory.available)} free of {gib(memory.total)}; about {gib(wanted)} needed"
    if wanted > memory.total:
        return Outcome("failed", text)
    return Outcome("ok" if memory.available >= wanted else "warning", text)


def check_shm(need: Need) -> Outcome:
    """There is shared memory: containers often have 64 MiB."""
    if not SHM.is_dir():
        return Outcome("failed", f"{SHM} does not exist")
    free = shutil.disk_usage(SHM).free
    return Outcome("ok" if free >= MIN_SHM_BYTES else "failed", f"{gib(free)} free in {SHM}")


def check_disk(need: Need) -> Outcome:
    """The runs' disk holds the checkpoints, and is writable."""
    place = next(path for path in (need.runs_dir, *need.runs_dir.parents) if path.exists())
    if not os.access(place, os.W_OK):
        return Outcome("failed", f"{place} is not writable", "set DSPARK_RUNS to a directory that is")
    free, wanted = shutil.disk_usage(place).free, need.disk_bytes or MIN_DISK_BYTES
    text = f"{gib(free)} free for {need.runs_dir}; about {gib(wanted)} needed"
    return Outcome("ok" if free >= wanted else "failed" if need.disk_bytes else "warning", text)


def check_open_files(need: Need) -> Outcome:
    """Enough files may be open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    enough = soft == resource.RLIM_INFINITY or soft >= MIN_OPEN_FILES
    return Outcome("ok" if enough else "warning", f"{soft} files may be open (at most {hard}); {MIN_OPEN_FILES} wanted")


def check_ports(need: Need) -> Outcome:
    """Ports can be reserved."""
    locks = reserve_ports([str(number) for number in range(NUM_TEST_PORTS)])
    for lock in locks.values():
        lock.release()
    ports = port_range()
    return Outcome("ok", f"ports {ports.start}-{ports.stop - 1} are below the ephemeral range, and there are free ones")


def check_clock(need: Need) -> Outcome:
    """The clock is not before the day our own files were written."""
    installed_s = Path(dspark_train.__file__).stat().st_mtime
    now = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
    return Outcome("ok" if time.time() >= installed_s - 60 else "failed", f"it is {now}")


def check_gpus(need: Need) -> Outcome:
    """The GPUs that the topology names are here."""
    gpus = list_gpus()
    text = f"{len(gpus)} GPUs: {', '.join(gpus)}" if gpus else "no GPU: engines and ranks compute on CPU"
    if len(gpus) < need.num_gpus:
        return Outcome("failed", f"{text}; the topology needs {need.num_gpus} on a node")
    return Outcome("ok", text)


def list_gpus() -> list[str]:
    """Name, memory and driver of each GPU, as nvidia-smi says; [] where there is no such program or no GPU."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    query = [program, "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    done = subprocess.run(query, capture_output=True, text=True, timeout=SMI_TIMEOUT_S, check=False)
    return done.stdout.strip().splitlines() if done.returncode == 0 else []


def gib(num_bytes: float) -> str:
    """For people."""
    return f"{num_bytes / GIB:.1f} GiB"


MACHINE_CHECKS = (
    Check("memory", check_memory, "end other programs, or lower store.segment_gib, engines.count or trainers.ranks"),
    Check("shared memory", check_shm, "start the container with --shm-size=1g or more, or mount a tmpfs there"),
    Check("disk", check_disk, "free some, lower checkpoint.keep, or set DSPARK_RUNS to a larger disk"),
    Check("open files", check_open_files, f"raise it before launch: ulimit -n {MIN_OPEN_FILES}"),
    Check("ports", check_ports, "narrow net.ipv4.ip_local_port_range, so that ports from 20000 on are left"),
    Check("clock", check_clock, "set the clock: samples, leases and certificates depend on it"),
    Check("gpus", check_gpus, "run on a machine that has them, or lower `gpus` in the topology's nodes"),
)

LOCAL_CHECKS = tuple(check for check in MACHINE_CHECKS if check.name in ("shared memory", "disk", "open files"))
"""What `launch` looks at before it starts anything: the quick ones whose answer does not change with the moment."""
