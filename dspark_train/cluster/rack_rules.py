"""What a node of a GB200 or GB300 rack needs, and what any node with GPUs does. Pure: facts in, outcome out.

The yardstick is the public three-node recipe for such a rack (`topologies/gb300-3node.yaml`), and what users of these
racks reported. Nothing here has been tried on one: each rule says what it saw, and is a warning where it may be wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dspark_train.cluster.checks import Finding, Need, Outcome
from dspark_train.cluster.node_facts import NodeFacts

GRACE_PAGE_BYTES = 65536
FABRIC_BITS_PER_S = 100e9
"""The slowest network of a GB300 rack's compute nodes is 400 Gbit/s; management networks have 1 to 25."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A pure check of one node. None: it has nothing to say about such a node."""

    name: str
    judge: Callable[[NodeFacts, Need], Outcome | None]
    remedy: str


def wheels(facts: NodeFacts, need: Need) -> Outcome | None:
    """What has machine code of its own was built for this machine. A copied environment shows itself here."""
    wrong = sorted(f"{name} for {built}" for name, built in facts.wheels.items() if built != facts.machine)
    if wrong:
        return Outcome("failed", f"this is {facts.machine}, and installed are {', '.join(wrong)}")
    return Outcome("ok", f"{len(facts.wheels)} wheels for {facts.machine}") if facts.wheels else None


def pages(facts: NodeFacts, need: Need) -> Outcome | None:
    """Grace has a kernel with pages of 64 KiB; registering and mapping a segment touches 16 times fewer then."""
    if facts.machine != "aarch64":
        return None
    text = f"pages of {facts.page_bytes // 1024} KiB"
    if facts.page_bytes == GRACE_PAGE_BYTES:
        return Outcome("ok", f"{text}; programs with a jemalloc built for 4 KiB end at once on it")
    return Outcome("warning", f"{text}, where 64 KiB are usual on Grace")


def domain(facts: NodeFacts, need: Need) -> Outcome | None:
    """The GPUs have joined their rack's NVLink domain. An engine over two nodes waits for ever in one that has not."""
    gpus = facts.gpus
    if not gpus.nvlink_domain:
        return None
    healthy = gpus.fabric == "Completed"
    return Outcome("ok" if healthy else "failed", f"NVLink domain {gpus.nvlink_domain}: {gpus.fabric or 'no state'}")


def imex(facts: NodeFacts, need: Need) -> Outcome | None:
    """Memory can be exported to other nodes of the domain: the daemon is up, and a channel is visible here.

    In a container the channel is a device of its own; without it cuMemCreate of a fabric handle fails, and NCCL with
    NCCL_MNNVL_ENABLE=1 and one-sided all-to-all with it.
    """
    gpus = facts.gpus
    if not gpus.nvlink_domain:
        return None
    text = f"IMEX says {gpus.imex or 'nothing'}, {gpus.num_imex_channels} channels"
    if not gpus.num_imex_channels:
        return Outcome("failed", f"{text}: no memory can be exported to other nodes")
    return Outcome("ok" if gpus.imex in ("UP", "READY") else "warning", text)


def export(facts: NodeFacts, need: Need) -> Outcome | None:
    """What PyTorch allocates can be exported: expandable segments are mapped without a fabric handle."""
    if not facts.gpus.nvlink_domain:
        return None
    given = f"{facts.env.get('PYTORCH_CUDA_ALLOC_CONF', '')},{facts.env.get('PYTORCH_ALLOC_CONF', '')}".lower()
    if "expandable_segments:true" in given.replace(" ", ""):
        return Outcome("warning", "expandable_segments:True: such memory may not be exportable over NVLink")
    return Outcome("ok", "PyTorch's allocator leaves memory exportable")


def rdma(facts: NodeFacts, need: Need) -> Outcome | None:
    """RDMA devices are there, where the store wants them. Without any, Mooncake turns to the NVLink of the rack.

    That reaches no host memory, and it hangs without a word (Mooncake issue 1639).
    """
    active = sorted(name for name, state in facts.rdma.items() if state == "ACTIVE")
    if need.store_protocol != "rdma":
        return Outcome("ok", f"{len(active)} active devices; the store uses tcp") if facts.rdma else None
    missing = sorted(set(filter(None, need.store_devices.split(","))) - set(active))
    if missing or not active:
        what = ", ".join(missing) or "device"
        return Outcome(
            "failed", f"store.protocol is rdma, and no active {what} is here ({facts.rdma or 'none at all'})"
        )
    return Outcome("ok", f"active: {', '.join(active)}")


def memory_lock(facts: NodeFacts, need: Need) -> Outcome | None:
    """RDMA and pinned memory are locked memory."""
    if facts.memlock_bytes is None:
        return Outcome("ok", "any amount of memory may be locked")
    text = f"{facts.memlock_bytes // 1024} KiB of memory may be locked"
    return Outcome("failed" if need.store_protocol == "rdma" else "warning" if facts.gpus.names else "ok", text)


def numa(facts: NodeFacts, need: Need) -> Outcome | None:
    """Processes may use the cores of every socket, and host memory is host memory.

    On Grace the kernel may show GPU memory as NUMA nodes of its own; a segment of the store must not land there.
    """
    own = facts.numa
    if len(own.cores) + own.num_memory_only < 2 and not own.num_cores_elsewhere:
        return None
    text = f"cores by NUMA node: {', '.join(f'{node}: {count}' for node, count in own.cores.items())}"
    wrong = []
    if facts.gpus.names and own.num_cores_elsewhere:
        wrong.append(f"{own.num_cores_elsewhere} cores of the node may not be used, with the GPUs beside them")
    if own.num_memory_only:
        wrong.append(f"{own.num_memory_only} NUMA nodes are memory alone, such as the GPUs'")
    if own.balancing and facts.gpus.names:
        wrong.append("the kernel moves pages by itself (numa_balancing)")
    return Outcome("warning", "; ".join((text, *wrong))) if wrong else Outcome("ok", text)


def fabric(facts: NodeFacts, need: Need) -> Outcome | None:
    """The node's address is on its fastest network. Nodes on the management network work, ten times slower."""
    name = facts.interface()
    if not name or facts.address.startswith("127."):
        return None
    own = facts.interfaces[name]
    speeds = {other: one.speed_bits_per_s or 0.0 for other, one in facts.interfaces.items()}
    fastest = max(speeds, key=lambda other: speeds[other])
    text = f"{facts.address} on {name}" + (f", {speeds[name] / 1e9:g} Gbit/s" if speeds[name] else "")
    if speeds[fastest] > 2 * speeds[name] > 0:
        return Outcome("warning", f"{text}; {fastest} has {speeds[fastest] / 1e9:g}")
    slow = facts.gpus.nvlink_domain and own.speed_bits_per_s and own.speed_bits_per_s < FABRIC_BITS_PER_S
    return Outcome("warning" if slow else "ok", text)


def sockets(facts: NodeFacts, need: Need) -> Outcome | None:
    """Gloo and NCCL use the interface that has the node's address, where they were told one at all."""
    name = facts.interface()
    told = {key: facts.env[key] for key in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME") if facts.env.get(key)}
    wrong = [f"{key}={value}" for key, value in told.items() if name and value.lstrip("=") != name]
    if wrong:
        return Outcome("failed", f"{', '.join(wrong)}, but {facts.address} is on {name}")
    return Outcome("ok", f"both on {name}") if name and len(told) == 2 else None


def uv_hook(facts: NodeFacts, need: Need) -> Outcome | None:
    """Ray's hook for `uv run` is off, where the node's Ray was started by somebody else's script."""
    if need.num_nodes > 1 and facts.env.get("RAY_ENABLE_UV_RUN_RUNTIME_ENV") != "0":
        return Outcome("warning", "RAY_ENABLE_UV_RUN_RUNTIME_ENV is not 0: under `uv run` workers build environments")
    return None


def target(facts: NodeFacts, need: Need) -> Outcome | None:
    """The model is on the node, or can be fetched."""
    if not need.target:
        return None
    if facts.target:
        return Outcome("ok", f"{need.target}: {facts.target}")
    if facts.hub == "on":
        return Outcome("warning", f"{need.target} is not here; the hub answers, and each node would fetch it")
    return Outcome("failed", f"{need.target} is not here, and the hub: {facts.hub}")


NODE_RULES = (
    Rule("wheels", wheels, "make the environment on a machine of this kind: make setup EXTRA=gpu"),
    Rule(
        "page size", pages, "install the 64 KiB kernel of the system's vendor (linux-nvidia-64k on Ubuntu), everywhere"
    ),
    Rule(
        "NVLink domain",
        domain,
        "see `nvidia-smi -q | grep -A5 Fabric`; restart the node's fabric services, or drain it",
    ),
    Rule(
        "IMEX",
        imex,
        "start nvidia-imex with all nodes in its nodes_config.cfg; in containers, pass a channel through "
        "(Kubernetes: a ComputeDomain)",
    ),
    Rule("memory export", export, "leave expandable_segments out of PYTORCH_CUDA_ALLOC_CONF on such a rack"),
    Rule(
        "RDMA",
        rdma,
        "pass the devices through, name those of `ibv_devices` in store.device, or use store.protocol: tcp",
    ),
    Rule(
        "locked memory", memory_lock, "ulimit -l unlimited, in limits.conf, in slurmd's or the container's own limits"
    ),
    Rule(
        "NUMA", numa, "give the job whole nodes; bind with numactl --membind to nodes that have cores; numa_balancing=0"
    ),
    Rule("network", fabric, "set DSPARK_SUBNET to the fast network's prefix before Ray is started"),
    Rule("sockets", sockets, "start Ray with launch/env.sh on every node, with the same DSPARK_SUBNET"),
    Rule("uv hook", uv_hook, "start Ray with launch/env.sh on every node"),
    Rule("target files", target, "put the model on a disk that all nodes see, and name that directory in target.model"),
)

MACHINE_RULES = tuple(rule for rule in NODE_RULES if rule.name not in ("network", "sockets", "uv hook", "target files"))
"""Those that make sense for a machine that is no node of a cluster yet."""


def judge(facts: NodeFacts, need: Need, rules: Sequence[Rule]) -> list[Finding]:
    """What the rules say of a node; a remedy only where one is needed."""
    findings = []
    for rule in rules:
        outcome = rule.judge(facts, need)
        if outcome is not None:
            remedy = "" if outcome.status == "ok" else outcome.remedy or rule.remedy
            findings.append(Finding(rule.name, outcome.status, outcome.text, remedy))
    return findings
