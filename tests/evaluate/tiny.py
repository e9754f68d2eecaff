"""Drafts of the tiny target with random weights, and the target's own greedy text, found without any of our code."""

from pathlib import Path
from typing import Any

import torch

from dspark_train.evaluate.prompts import Prompt
from dspark_train.trainer.drafts import build_draft
from tests.trainer import recorded

BLOCK = 4
VOCAB = 512
TRAIN: dict[str, dict[str, Any]] = {
    "dspark": {"block_size": BLOCK, "max_anchors": 12, "markov_rank": 16},
    "dflash": {"block_size": BLOCK + 1, "max_anchors": 12},
    "eagle3": {"ttt_steps": BLOCK, "draft_attn_impl": "eager"},
}


def tiny_draft(algorithm: str, tiny_target: Path, data: Path, **train: Any) -> Any:
    """An untrained draft that reads layers 1, 2 and 3 and has a quarter of the vocabulary."""
    fields = {"num_layers": 2, "draft_vocab_size": 128, "lr": 1e-3} | TRAIN[algorithm] | train
    resolved = recorded.resolved_run(
        tiny_target, data, target={"layers": [1, 2, 3]}, draft={"algorithm": algorithm, "train": fields}
    )
    resolved = resolved.model_copy(
        update={"train": {k: v for k, v in resolved.train.items() if k != "markov_rank" or algorithm == "dspark"}}
    )
    model = build_draft(resolved, data).model.eval()
    torch.manual_seed(5)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.requires_grad and weight.ndim > 1:
                weight.normal_(std=0.15)
    return model


def prompts(lengths: list[int]) -> list[Prompt]:
    drawn = torch.Generator().manual_seed(11)
    ids = [torch.randint(4, 260, (n,), generator=drawn).tolist() for n in lengths]
    return [Prompt(f"p{i}", "d", tuple(row)) for i, row in enumerate(ids)]


def greedy(tiny_target: Path, prompt: Prompt, num_tokens: int) -> list[int]:
    """The target's own text, one token at a time, each in a pass of its own over all before it."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(tiny_target, dtype=torch.float32).eval()
    ids = list(prompt.ids)
    with torch.no_grad():
        for _ in range(num_tokens):
            ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
    return ids[len(prompt.ids) :]
