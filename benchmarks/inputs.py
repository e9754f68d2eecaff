"""Make what the runs of these benchmarks need: a tiny target with a tokenizer, and a data set of the shipped prompts.

`python benchmarks/inputs.py DIR` writes DIR/target and DIR/data. Nothing is downloaded. With `--wide` the target is one
that only the stand-in can serve: wide, of a large vocabulary, and with no weights but those that a draft copies; each
sample is as long as a pack.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import torch
from datasets import Dataset as Rows
from safetensors.torch import save_file

from dspark_train.data.dataset import write_index

ROOT = Path(__file__).parents[1]
SEQ_LEN, LONGEST_TOKENS, FIRST_ID, NUM_IDS = 256, 240, 4, 250
WIDE = {"hidden_size": 1024, "intermediate_size": 2816, "vocab_size": 16384, "num_attention_heads": 16}
WIDE_SEQ_LEN, NUM_WIDE_SAMPLES = 512, 256


def write_inputs(root: Path) -> None:
    """Target and data set, as a run and as the peer's own training read them."""
    save_target(root / "target")
    lines = (ROOT / "examples" / "prompts.jsonl").read_text(encoding="utf-8").splitlines()
    texts = [json.dumps(json.loads(line)).encode()[:LONGEST_TOKENS] for line in lines]
    ids = [[FIRST_ID + byte % NUM_IDS for byte in text] for text in texts]
    write_data(root, ids, SEQ_LEN)


def write_wide_inputs(root: Path) -> None:
    """Target and data set that make a rank's ring and draft large."""
    target = root / "target"
    save_target(target)
    config = json.loads((target / "config.json").read_text(encoding="utf-8"))
    config |= {**WIDE, "num_key_value_heads": 4, "head_dim": 64}
    (target / "config.json").write_text(json.dumps(config), encoding="utf-8")
    torch.manual_seed(0)
    table = (WIDE["vocab_size"], WIDE["hidden_size"])
    weights = {f"{name}.weight": torch.randn(table) * 0.02 for name in ("model.embed_tokens", "lm_head")}
    weights["model.norm.weight"] = torch.ones(WIDE["hidden_size"])
    save_file(weights, target / "model.safetensors", metadata={"format": "pt"})
    drawn = np.random.default_rng(0).integers(FIRST_ID, FIRST_ID + NUM_IDS, (NUM_WIDE_SAMPLES, WIDE_SEQ_LEN))
    write_data(root, drawn.tolist(), WIDE_SEQ_LEN)


def save_target(directory: Path) -> None:
    """The tests' own tiny target."""
    sys.path.insert(0, str(ROOT))
    from tests.conftest import save_tiny_target

    directory.mkdir(parents=True, exist_ok=True)
    save_tiny_target(directory)


def write_data(root: Path, ids: list[list[int]], seq_len: int) -> None:
    """The data set of these token ids, all but each one's first quarter trained on."""
    data = root / "data"
    data.mkdir(parents=True, exist_ok=True)
    masks = [[int(place >= len(row) // 4) for place in range(len(row))] for row in ids]
    rows = Rows.from_dict({"input_ids": ids, "loss_mask": masks, "seq_len": [len(row) for row in ids]})
    rows.with_format("torch").save_to_disk(str(data / "dataset"))
    write_index(data, target=str(root / "target"), seq_len=seq_len, inputs="", options={})
    counts = Counter(
        token for row, mask in zip(ids, masks, strict=True) for token, kept in zip(row, mask, strict=True) if kept
    )
    torch.save(dict(counts), data / "token_freq.pt")


if __name__ == "__main__":
    (write_wide_inputs if "--wide" in sys.argv[2:] else write_inputs)(Path(sys.argv[1]))
