"""A serving command as people take it: a line for a shell, one for docker, vLLM's own YAML. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any

import yaml

from dspark_train.plan.serving import HEAD_ADDRESS, ServingCommand

VLLM_VERSION = "0.32.0"
IMAGES = {"cuda": f"vllm/vllm-openai:v{VLLM_VERSION}", "cpu": f"vllm/vllm-openai-cpu:v{VLLM_VERSION}"}
_MODEL_DIR, _DRAFT_DIR = "/models/target", "/models/draft"
_HUB_CACHE = "$HOME/.cache/huggingface:/root/.cache/huggingface"
"""For a target by name: what the hub was asked for once is kept."""


def shell(command: ServingCommand) -> str:
    """One command a node; the first node's address is $HEAD_ADDRESS, and secrets come from the environment."""
    return "\n".join(_with_titles(command, [_shell_line(command, node) for node in range(command.num_nodes)]))


def docker(command: ServingCommand, image: str = "") -> str:
    """`docker run` of vLLM's image, the models mounted; one a node."""
    mounted, mounts = _mounted(command)
    port = int(command.options["port"])
    lines = []
    for node in range(command.num_nodes):
        words = ["docker", "run", "--rm", "--ipc=host"] + (["--gpus", "all"] if command.device == "cuda" else [])
        # Several nodes find each other by their own addresses.
        words += ["--network=host"] if command.num_nodes > 1 else ["-p", f"{command.options['host']}:{port}:{port}"]
        words += [word for mount in mounts for word in ("-v", mount)]
        words += [word for name, value in sorted(command.env.items()) for word in ("-e", f"{name}={value}")]
        words += [word for name in command.secrets for word in ("-e", name)]
        model, *rest = _after_serve(mounted, node)
        lines.append(_joined([*words, image or IMAGES[command.device], "--model", model, *rest]))
    return "\n".join(_with_titles(command, lines))


def as_yaml(command: ServingCommand) -> str:
    """The file for `vllm serve --config FILE`; what a node and the environment need stands in comments."""
    head = [f"# {_entry(command)} serve --config THIS_FILE"]
    if command.num_nodes > 1:
        flags = f"--nnodes {command.num_nodes} --node-rank N --master-addr {HEAD_ADDRESS} --master-port PORT"
        head.append(f"# on each of {command.num_nodes} nodes with {flags}, and --headless but for N = 0")
    head += [f"# environment: {name}={value}" for name, value in sorted(command.env.items())]
    head += [f"# environment: {name}, which is a secret" for name in command.secrets]
    options = {"model": command.target} | {
        name.replace("_", "-"): value for name, value in command.options.items() if value is not None
    }
    return "\n".join(head) + "\n" + yaml.safe_dump(options, sort_keys=False, width=1000)


def _shell_line(command: ServingCommand, node: int) -> str:
    env = [f"{name}={shlex.quote(value)}" for name, value in sorted(command.env.items())]
    env += [f'{name}="${name}"' for name in command.secrets]
    return " ".join([*env, _joined(command.argv(node))])


def _joined(words: list[str] | tuple[str, ...]) -> str:
    """As a shell takes it; what only the shell knows is left to its variables."""
    return " ".join(_word(word) for word in words)


def _word(word: str) -> str:
    if word == HEAD_ADDRESS:
        return f'"${word}"'
    return f'"{word}"' if word == _HUB_CACHE else shlex.quote(word)


def _with_titles(command: ServingCommand, lines: list[str]) -> Iterator[str]:
    for node, line in enumerate(lines):
        if command.num_nodes > 1:
            yield f"# node {node}" + (f", whose address is ${HEAD_ADDRESS}" if node == 0 else "")
        yield line


def _after_serve(command: ServingCommand, node: int) -> tuple[str, ...]:
    argv = command.argv(node)
    return argv[argv.index("serve") + 1 :]


def _entry(command: ServingCommand) -> str:
    argv = command.argv()
    return " ".join(argv[: argv.index("serve")])


def _mounted(command: ServingCommand) -> tuple[ServingCommand, list[str]]:
    """The command with the paths that it has inside a container, and the mounts that put them there."""
    mounts: list[str] = []
    update: dict[str, Any] = {}
    options = dict(command.options)
    if command.num_nodes == 1:
        options["host"] = "0.0.0.0"  # the container's own loopback is not the host's
    if PurePosixPath(command.target).is_absolute():
        mounts.append(f"{command.target}:{_MODEL_DIR}:ro")
        update["target"] = _MODEL_DIR
    else:
        mounts.append(_HUB_CACHE)
    speculative: Mapping[str, Any] = options.get("speculative_config") or {}
    if PurePosixPath(str(speculative.get("model", ""))).is_absolute():
        mounts.append(f"{speculative['model']}:{_DRAFT_DIR}:ro")
        options["speculative_config"] = {**speculative, "model": _DRAFT_DIR}
    return command.model_copy(update={**update, "options": options}), mounts
