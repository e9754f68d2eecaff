"""A data set and a topology small enough for a fault in every few seconds, with hidden states that never differ.

The stand-in engine computes them from the token ids, so that a disturbed run can be compared with one left alone.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).parents[2] / "examples" / "prompts.jsonl"
NUM_ROWS = 120
SEQ_LEN = 256
STEP_PACKS = 4
STEP_TOKENS = STEP_PACKS * SEQ_LEN
LIES = "lies.json"
"""In the line's directory: what the engines are ordered to do."""
STAND_IN = "dspark_train.engine.stand_in"


def write_dataset(path: Path) -> None:
    """Rows of bytes as tokens, the first quarter of each a prompt; what `prepare` would take a minute for."""
    import torch
    from datasets import Dataset as Rows

    from dspark_train.data.dataset import write_index

    texts = EXAMPLES.read_text(encoding="utf-8").splitlines()[:NUM_ROWS]
    ids = [[4 + byte % 250 for byte in json.dumps(json.loads(text)).encode()[: SEQ_LEN - 16]] for text in texts]
    masks = [[int(place >= len(row) // 4) for place in range(len(row))] for row in ids]
    rows = Rows.from_dict({"input_ids": ids, "loss_mask": masks, "seq_len": [len(row) for row in ids]})
    rows.save_to_disk(str(path / "dataset"))
    write_index(path, target="tiny", seq_len=SEQ_LEN, inputs="", options={})
    pairs = zip((token for row in ids for token in row), (mark for mask in masks for mark in mask), strict=True)
    torch.save(dict(Counter(token for token, mark in pairs if mark)), path / "token_freq.pt")


def topology(target: Path, data: Path, lies: Path) -> dict[str, Any]:
    """64 steps of a small draft. Every engine is a liar that tells the truth until it is ordered to lie."""
    train = {"num_layers": 1, "block_size": 4, "max_anchors": 16, "optimizer": "adamw", "lr": 0.005}
    env = {"DSPARK_HONEST_ENTRY": STAND_IN, "DSPARK_LIES_FILE": str(lies)}
    return {
        "name": "tiny",
        "target": {"model": str(target), "layers": [1, 2]},
        "draft": {"algorithm": "dspark", "train": train},
        "data": {"path": str(data), "seq_len": SEQ_LEN, "step_packs": STEP_PACKS},
        "nodes": {"shared": {"count": 1, "gpus": 0}},
        "engines": {
            "count": {"start": 1, "max": 3},
            "entry": "dspark_train.engine.liar",
            "env": env,
            "max_in_flight": 2,
            "max_in_flight_tokens": 2 * SEQ_LEN,
            "request_timeout_s": 10,
        },
        "trainers": {"ranks": {"start": 1, "max": 4}, "group_timeout_s": 60},
        "ledger": {"lease_s": 20},
        "supervision": {"silence_s": 20},
        "store": {"segment_gib": 0.125},
        "run": {"seed": 7, "max_steps": 64},
        "validation": {"every_steps": 32},
        "checkpoint": {"every_steps": 16, "keep": 3},
    }
