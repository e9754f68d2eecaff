"""What each process is started with: argv, environment, ports. Pure; `launch` starts exactly this.

Addresses and port numbers are placeholders (see `spec.py`), as they are known only where a process starts.
"""

from __future__ import annotations

from collections.abc import Sequence

from dspark_train.plan.placement import engine_nodes, head, rank_nodes
from dspark_train.plan.spec import PlannedNode, ProcessSpec
from dspark_train.plan.vllm_argv import serve_argv
from dspark_train.plan.vllm_env import hub_env, vllm_env
from dspark_train.topology.resolve import Resolved
from dspark_train.topology.rules_nodes import engine_gpus

_MASTER_ENV = {"PYTHONUNBUFFERED": "1"}


def controller_process(nodes: Sequence[PlannedNode]) -> ProcessSpec:
    """The controller; its port serves `status`, `scale` and `stop`."""
    return _actor(
        "controller", "controller", head(nodes), "dspark_train.controller.controller:Controller", ports=("api",)
    )


def ledger_process(nodes: Sequence[PlannedNode]) -> ProcessSpec:
    """The ledger, beside the controller."""
    return _actor("ledger", "ledger", head(nodes), "dspark_train.controller.ledger_service:LedgerService")


def master_process(resolved: Resolved, nodes: Sequence[PlannedNode]) -> ProcessSpec:
    """Mooncake's master, which knows where each object is, and evicts nothing; of a directory, who looks after it."""
    store, node = resolved.topology.store, head(nodes)
    if resolved.mode != "online":
        return _actor("master", "master", node, "dspark_train.store.disk_master:DiskMaster")
    argv = (
        "mooncake_master",
        f"--rpc_address={{host:{node}}}",
        "--rpc_port={port:master.rpc}",
        # Whoever reaches the admin server can delete every object, and it listens everywhere by default.
        "--metrics_host=127.0.0.1",
        "--metrics_port={port:master.metrics}",
        f"--client_ttl={store.client_ttl_s}",
        # Objects are pinned by their writers. Should one not be, a full store is refused to it, not emptied for it.
        "--eviction_high_watermark_ratio=1.0",
        "--eviction_ratio=0.0",
        "--allow_evict_soft_pinned_objects=false",
        "--logtostderr=true",
    )
    ports = {"rpc": None, "metrics": None}
    return ProcessSpec(
        name="master", kind="master", node=node, argv=argv, env=dict(_MASTER_ENV), ports=ports, num_gpus=0
    )


def engine_processes(resolved: Resolved, nodes: Sequence[PlannedNode], index: int) -> tuple[ProcessSpec, ...]:
    """Engine ``index`` (from 1): one process a node, the one that answers requests first.

    Raises UsageError where the nodes hold no more engines.
    """
    return engine_on(resolved, nodes, index, engine_nodes(resolved, nodes, index))


def engine_on(
    resolved: Resolved, nodes: Sequence[PlannedNode], index: int, own: Sequence[str]
) -> tuple[ProcessSpec, ...]:
    """Engine ``index`` on nodes that are known already, the one that answers requests first."""
    if resolved.mode == "offline":
        return (_actor(f"engine-{index}.0", "engine", own[0], "dspark_train.engine.archive:Archive"),)
    return tuple(
        ProcessSpec(
            name=f"engine-{index}.{place}",
            kind="engine",
            node=node,
            argv=serve_argv(resolved, index, own, place, head(nodes)),
            env=engine_env(resolved, node, len(own)),
            ports=dict.fromkeys((() if place else ("http",) if len(own) == 1 else ("http", "dist")), None),
            num_gpus=engine_gpus(resolved.topology) if resolved.device == "cuda" else 0,
        )
        for place, node in enumerate(own)
    )


def rank_process(resolved: Resolved, nodes: Sequence[PlannedNode], index: int) -> ProcessSpec:
    """Rank ``index`` (from 0). Its rendezvous port is reserved anew with each generation of the group.

    Raises UsageError where no GPU is left for it.
    """
    return rank_on(resolved, index, rank_nodes(resolved, nodes, index + 1)[index])


def rank_on(resolved: Resolved, index: int, node: str) -> ProcessSpec:
    """Rank ``index`` on a node that is known already."""
    threads = {"OMP_NUM_THREADS": str(resolved.topology.trainers.cpu_threads)} if resolved.device == "cpu" else {}
    spec = _actor(f"rank-{index}", "rank", node, "dspark_train.trainer.rank:Rank", env=threads | hub_env(resolved))
    return spec.model_copy(update={"num_gpus": 1 if resolved.device == "cuda" else 0})


def engine_env(resolved: Resolved, node: str, num_nodes: int) -> dict[str, str]:
    """What the processes of an engine on ``node`` get, one of ``num_nodes``."""
    engines = resolved.topology.engines
    env = vllm_env(resolved, engines.cpu_threads)
    if num_nodes > 1:
        env |= {"VLLM_HOST_IP": f"{{host:{node}}}", "GLOO_SOCKET_IFNAME": "{interface}"}
    return env | dict(engines.env)


def _actor(
    name: str, kind: str, node: str, factory: str, *, ports: Sequence[str] = (), env: dict[str, str] | None = None
) -> ProcessSpec:
    """A process whose actor itself does the work."""
    return ProcessSpec.model_validate(
        {
            "name": name,
            "kind": kind,
            "node": node,
            "argv": ("actor", factory),
            "env": env or {},
            "ports": dict.fromkeys(ports),
            "num_gpus": 0,
        }
    )
