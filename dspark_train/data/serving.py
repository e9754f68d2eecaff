"""The command of the one server that `prepare` starts on this machine: it renders chats, and writes answers if asked.

Without answers to write, vLLM's rendering server does: it needs no GPU, loads no weights and is up in seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from dspark_train.errors import UsageError
from dspark_train.plan.vllm_argv import vllm_flags
from dspark_train.plan.vllm_env import vllm_env
from dspark_train.topology.resolve import Resolved

HOST = "127.0.0.1"
MODELS_TIMEOUT_S = 10.0
MIN_BATCHED_TOKENS = 2048
CPU_INFO = Path("/proc/cpuinfo")
BFLOAT16_FLAGS = {"avx512_bf16", "amx_bf16", "bf16"}
"""With these in hardware a CPU writes in bfloat16 about twice as fast as in float32; without, slower."""
RENDER_OPTIONS = (
    "chat_template",
    "chat_template_content_format",
    "config_format",
    "default_chat_template_kwargs",
    "hf_config_path",
    "hf_overrides",
    "max_model_len",
    "revision",
    "code_revision",
    "tokenizer",
    "tokenizer_mode",
    "tokenizer_revision",
)
"""Of `engines.vllm`, what a server without weights needs to know."""


@dataclass(frozen=True)
class ServerCommand:
    """argv ("python" is this interpreter), and what to add to the environment."""

    argv: tuple[str, ...]
    env: dict[str, str]


def server_command(resolved: Resolved, *, port: int, writes: bool, threads: int, cpu_flags: str = "") -> ServerCommand:
    """writes: it must generate answers, not only render. threads, cpu_flags: of this machine, where it runs on CPU.

    Raises UsageError where the target takes more than one node.
    """
    topology = resolved.topology
    model = resolved.facts.path or topology.target.model
    options: dict[str, Any] = {"max_model_len": topology.data.seq_len + 1} | dict(topology.engines.vllm)
    common = ["--host", HOST, "--port", str(port), "--served-model-name", topology.target.model]
    if topology.target.trust_remote_code:
        common.append("--trust-remote-code")
    entry = ["python", "-m", "dspark_train.engine.vllm_entry"]
    if not writes:
        kept = {name: options[name] for name in RENDER_OPTIONS if name in options}
        argv = [*entry, "launch", "render", model, *common, *vllm_flags(kept)]
        return ServerCommand(tuple(argv), _env(resolved, threads))
    if topology.engines.nodes_per_engine > 1:
        raise UsageError(
            f"the target takes {topology.engines.nodes_per_engine} nodes, and prepare starts servers on this one only: "
            "start vLLM over them with --enable-scale-out, and name it with --endpoint http://HOST:PORT"
        )
    if resolved.device == "cpu":
        options = {"enforce_eager": True} | options | _whole_prompts(options)
    argv = [*entry, "serve", model, *common, "--enable-scale-out", "--dtype", _dtype(resolved, cpu_flags)]
    argv += ["--tensor-parallel-size", str(topology.engines.tensor_parallel), *vllm_flags(options)]
    return ServerCommand(tuple(argv), _env(resolved, threads))


def served_model(endpoint: str) -> str:
    """The name of the model that a running server serves. Raises UsageError where none answers there."""
    try:
        reply = httpx.get(f"{endpoint}/v1/models", timeout=MODELS_TIMEOUT_S, trust_env=False)
        return str(reply.raise_for_status().json()["data"][0]["id"])
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, KeyError, IndexError, TypeError) as error:
        reason = f"{type(error).__name__} {error}".strip()
        raise UsageError(f"--endpoint {endpoint} names no vLLM server ({reason}): give http://HOST:PORT") from error


def cpu_flags() -> str:
    """The features of this machine's CPU, as Linux lists them; "" where it does not say."""
    try:
        lines = CPU_INFO.read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")


def _whole_prompts(options: Mapping[str, Any]) -> dict[str, Any]:
    """No prompt in pieces: for a request with a seed, vLLM then rewinds its generator, which ends an engine on CPU.

    ("CPU Generator does not use offset", seen in 0.32 with 64 requests at once.)
    """
    num_tokens = (MIN_BATCHED_TOKENS, options["max_model_len"], options.get("max_num_batched_tokens", 0))
    return {"enable_chunked_prefill": False, "max_num_batched_tokens": max(num_tokens)}


def _dtype(resolved: Resolved, cpu_flags: str) -> str:
    if resolved.device == "cuda":
        return resolved.hidden_dtype
    return "bfloat16" if BFLOAT16_FLAGS & set(cpu_flags.split()) else "float32"


def _env(resolved: Resolved, threads: int) -> dict[str, str]:
    return vllm_env(resolved, threads) | dict(resolved.topology.engines.env)
