"""The command of a vLLM server with a draft, as `eval` starts one to count acceptance. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass

HOST = "127.0.0.1"
SERVED_NAME = "target"
METHODS = {"dspark": "dspark", "dflash": "dflash", "dflash2": "dflash", "eagle3": "eagle3", "peagle": "eagle3"}
"""What vLLM calls each of speculators' algorithms."""
CPU_KV_CACHE_GIB = 2
NOT_ON_CPU = {"dspark": "vLLM drafts as DSpark does in Triton kernels, which no CPU build has"}


@dataclass(frozen=True)
class Serving:
    """A target with a draft. num_tokens: drafted at a time. max_model_len: of a prompt and its answer, in tokens."""

    target: str
    draft: str
    algorithm: str
    num_tokens: int
    max_model_len: int
    on_cpu: bool
    trust_remote_code: bool = False
    draft_samples: bool = False


def speculative_config(serving: Serving) -> dict[str, object]:
    """What vLLM's --speculative-config takes."""
    config: dict[str, object] = {
        "method": METHODS.get(serving.algorithm, serving.algorithm),
        "model": serving.draft,
        "num_speculative_tokens": serving.num_tokens,
    }
    if serving.algorithm == "peagle":
        config["parallel_drafting"] = True
    return config | ({"draft_sample_method": "probabilistic"} if serving.draft_samples else {})


def serving_argv(serving: Serving, port: int) -> tuple[str, ...]:
    """argv; "python" is this interpreter. Prefixes are not cached: every token is then verified and counted alike."""
    argv = ["python", "-m", "dspark_train.engine.vllm_entry", "serve", serving.target]
    argv += ["--host", HOST, "--port", str(port), "--served-model-name", SERVED_NAME]
    argv += ["--max-model-len", str(serving.max_model_len), "--no-enable-prefix-caching"]
    argv += ["--speculative-config", json.dumps(speculative_config(serving), separators=(",", ":"))]
    argv += ["--trust-remote-code"] if serving.trust_remote_code else []
    # in float32, and all of a prompt at once: see data/serving.py on seeds and prompts in pieces
    most = max(2048, serving.max_model_len)
    on_cpu = ["--dtype", "float32", "--enforce-eager", "--no-enable-chunked-prefill"]
    return (*argv, *((*on_cpu, "--max-num-batched-tokens", str(most)) if serving.on_cpu else ()))


def serving_env(serving: Serving, threads: int) -> dict[str, str]:
    """What is added to the environment. threads: of the server, on CPU."""
    env = {"PYTHONUNBUFFERED": "1", "VLLM_NO_USAGE_STATS": "1"}
    if serving.on_cpu:
        env |= {
            "OMP_NUM_THREADS": str(threads),
            "VLLM_CPU_KVCACHE_SPACE": str(CPU_KV_CACHE_GIB),
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        }
    return env
