"""The environment of a vLLM server, whether it extracts or writes answers. Pure."""

from __future__ import annotations

from dspark_train.topology.resolve import Resolved

PAUSE_S = "0.0005"
"""How long vLLM's processes sleep where they would spin, on CPU: see engine/vllm_plugin.py."""


def hub_env(resolved: Resolved) -> dict[str, str]:
    """A local target needs no hub; without this, a machine without network waits for one."""
    return {"HF_HUB_OFFLINE": "1"} if resolved.facts.is_local else {}


def vllm_env(resolved: Resolved, cpu_threads: int) -> dict[str, str]:
    """What every vLLM server gets; the topology's own ``engines.env`` goes over it."""
    env = {"PYTHONUNBUFFERED": "1", "VLLM_LOGGING_LEVEL": "INFO", "VLLM_NO_USAGE_STATS": "1"} | hub_env(resolved)
    if resolved.device == "cpu":
        env |= {
            "OMP_NUM_THREADS": str(cpu_threads),
            "VLLM_CPU_KVCACHE_SPACE": str(resolved.topology.engines.cpu_kv_cache_gib),
            # vLLM would bind its threads to cores that other processes of the run are bound to as well.
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "DSPARK_VLLM_PAUSE_S": PAUSE_S,
        }
    return env
