"""Make what the runs of these benchmarks need: a tiny target with a tokenizer, and a data set of the shipped prompts.

`python benchmarks/inputs.py DIR` writes DIR/target and DIR/data. Nothing is downloaded.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path

import torch
from datasets import Dataset as Rows

from dspark_train.data.dataset import write_index

ROOT = Path(__file__).parents[1]
SEQ_LEN, LONGEST_TOKENS, FIRST_ID, NUM_IDS = 256, 240, 4, 250


def write_inputs(root: Path) -> None:
    """Target and data set, as a run and as the peer's own training read them."""
    sys.path.insert(0, str(ROOT))
    from tests.conftest import save_tiny_target

    target, data = root / "target", root / "data"
    for directory in (target, data):
        directory.mkdir(parents=True, exist_ok=True)
    save_tiny_target(target)
    lines = (ROOT / "examples" / "prompts.jsonl").read_text(encoding="utf-8").splitlines()
    texts = [json.dumps(json.loads(line)).encode()[:LONGEST_TOKENS] for line in lines]
    ids = [[FIRST_ID + byte % NUM_IDS for byte in text] for text in texts]
    masks = [[int(place >= len(row) // 4) for place in range(len(row))] for row in ids]
    rows = Rows.from_dict({"input_ids": ids, "loss_mask": masks, "seq_len": [len(row) for row in ids]})
    rows.with_format("torch").save_to_disk(str(data / "dataset"))
    write_index(data, target=str(target), seq_len=SEQ_LEN, inputs="", options={})
    counts = Counter(
        token for row, mask in zip(ids, masks, strict=True) for token, kept in zip(row, mask, strict=True) if kept
    )
    torch.save(dict(counts), data / "token_freq.pt")


if __name__ == "__main__":
    write_inputs(Path(sys.argv[1]))
