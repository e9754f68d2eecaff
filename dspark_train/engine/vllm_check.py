"""Whether vLLM takes an export: its config beside the target's, and its weights into vLLM's own model class.

Nothing is run: the kernels of a draft are not tried, and a DSpark draft is read on a CPU that could not run it.
``check`` starts this module as a child, since vLLM changes the process that imports it.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dspark_train.data.draft import read_draft_facts
from dspark_train.errors import CheckpointError
from dspark_train.plan.serving import METHODS, ServingOptions, speculative_config
from dspark_train.plan.vllm_env import hub_env
from dspark_train.store.ports import reserve_port
from dspark_train.topology.resolve import Resolved

if TYPE_CHECKING:
    import torch

TIMEOUT_S = 600.0
SHARED = ("embed_tokens", "lm_head", "mask_embedding")
"""Weights that vLLM takes from the target, or does not use, where a draft does not bring them."""


@dataclass(frozen=True)
class Checked:
    """What vLLM made of an export. num_weights: read into its model; None where that was not tried; text: in words."""

    architecture: str | None
    method: str | None
    num_speculative_tokens: int | None
    num_weights: int | None
    text: str


def check(directory: Path, resolved: Resolved, log: Path) -> Checked:
    """Have vLLM load the draft in ``directory``. Raises CheckpointError where it does not take it.

    log: appended to, with what vLLM prints.
    """
    facts = read_draft_facts(str(directory))
    assert facts is not None
    if facts.algorithm not in METHODS:
        return _untried(f"vLLM does not take {facts.algorithm} drafts beside a target: not tried there")
    if importlib.util.find_spec("vllm") is None:
        return _untried("vLLM is not installed here: not tried there")
    options = ServingOptions.of(resolved)
    argv = [sys.executable, "-m", __name__, options.path or options.target, options.dtype]
    argv.append(json.dumps(speculative_config(facts)))
    if options.trust_remote_code:
        argv.append("--trust-remote-code")
    found = _run(argv, hub_env(resolved), log)
    if found.get("refused"):
        raise CheckpointError(f"{directory}: vLLM does not take it: {found['refused']}; log: {log}")
    config = "vLLM takes its config beside the target's"
    if found.get("untried"):
        return Checked(**found["config"], num_weights=None, text=f"{config}; its weights not tried: {found['untried']}")
    text = f"{config} and reads its weights into {found['config']['architecture']}"
    return Checked(**found["config"], num_weights=found["num_weights"], text=text)


def _untried(text: str) -> Checked:
    return Checked(None, None, None, None, text)


def _run(argv: list[str], env: dict[str, str], log: Path) -> dict[str, Any]:
    """The child's last line of output. Raises CheckpointError where it has none."""
    with log.open("a", encoding="utf-8") as stream:
        try:
            done = subprocess.run(
                argv,
                env={**os.environ, **env, "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=stream,
                text=True,
                timeout=TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise CheckpointError(f"vLLM did not load the draft within {TIMEOUT_S:g} s; log: {log}") from error
        stream.write(done.stdout)
    lines = done.stdout.splitlines()
    try:
        return dict(json.loads(lines[-1]))
    except (IndexError, ValueError) as error:
        raise CheckpointError(
            f"vLLM ended with code {done.returncode} while it loaded the draft; log: {log}"
        ) from error


def main() -> None:
    """The child: print what vLLM made of target, type and speculative config as one line of JSON."""
    from dspark_train.engine.vllm_entry import answer_version

    answer_version()
    target, dtype, speculative, *flags = sys.argv[1:]
    try:
        config = _config(target, dtype, json.loads(speculative), "--trust-remote-code" in flags)
    except Exception as error:  # noqa: BLE001 - whatever vLLM raises is why it does not take the draft
        print(json.dumps({"refused": _line(error)}))
        return
    found: dict[str, Any] = {"config": _described(config)}
    try:
        found["num_weights"] = _load(config)
    except (ImportError, NotImplementedError, AttributeError) as error:
        found["untried"] = _line(error)  # a part of vLLM that is not there without a GPU
    except Exception as error:  # noqa: BLE001 - as above
        found["refused"] = _line(error)
    print(json.dumps(found))


def _config(target: str, dtype: str, speculative: dict[str, Any], trust_remote_code: bool) -> Any:
    from vllm.config import VllmConfig
    from vllm.engine.arg_utils import EngineArgs
    from vllm.triton_utils import HAS_TRITON

    if not HAS_TRITON:
        # Without it vLLM has its older runner alone, which runs no DSpark draft. Nothing is run here: its model class
        # can be made, and read into, all the same.
        VllmConfig._validate_v1_model_runner = lambda self: None
    args = EngineArgs(
        model=target,
        dtype=dtype,
        speculative_config=speculative,
        enforce_eager=True,
        trust_remote_code=trust_remote_code,
    )
    return args.create_engine_config()


def _described(config: Any) -> dict[str, Any]:
    speculative = config.speculative_config
    return {
        "architecture": speculative.draft_model_config.architectures[0],
        "method": speculative.method,
        "num_speculative_tokens": speculative.num_speculative_tokens,
    }


def _load(config: Any) -> int:
    """Read the weights into a model full of marks: one that stays was not in the files. Returns how many were read."""
    import torch
    from vllm.config import set_current_vllm_config
    from vllm.distributed.parallel_state import init_distributed_environment, initialize_model_parallel
    from vllm.model_executor.model_loader import get_model_loader
    from vllm.model_executor.model_loader.utils import initialize_model
    from vllm.utils.torch_utils import set_default_torch_dtype

    draft = config.speculative_config.draft_model_config
    lock = reserve_port()
    with set_current_vllm_config(config), set_default_torch_dtype(draft.dtype), torch.device("cpu"):
        init_distributed_environment(1, 0, f"tcp://127.0.0.1:{lock.port}", 0, backend="gloo")
        initialize_model_parallel(1, 1)
        model = initialize_model(vllm_config=config, model_config=draft)
        for weight in model.parameters():
            weight.data.fill_(_mark(weight.dtype))
        get_model_loader(config.load_config).load_weights(model, draft)
    lock.release()
    left = [name for name, weight in model.named_parameters() if _is_marked(weight)]
    missing = [name for name in left if not any(part in name for part in SHARED)]
    if missing:
        raise ValueError(f"these weights of its model are not in the draft: {', '.join(missing)}")
    return sum(weight.numel() for name, weight in model.named_parameters() if name not in left)


def _mark(dtype: torch.dtype) -> float | int:
    """What no weight of a sound draft is: NaN, or the least whole number where it maps a vocabulary."""
    import torch

    return float("nan") if dtype.is_floating_point else torch.iinfo(dtype).min


def _is_marked(weight: torch.Tensor) -> bool:
    left = weight.isnan() if weight.dtype.is_floating_point else weight == _mark(weight.dtype)
    return bool(left.any())


def _line(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:1000]


if __name__ == "__main__":
    main()
