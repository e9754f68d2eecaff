"""One sample of a data set as text, to be looked at by people."""

from __future__ import annotations

from itertools import groupby

from dspark_train.data.dataset import Dataset


def sample_text(dataset: Dataset, index: int, model: str, *, trust_remote_code: bool) -> list[tuple[str, bool]]:
    """The sample in pieces: (text, whether it is trained on). Loads the target's tokenizer."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model, trust_remote_code=trust_remote_code)
    pairs = zip(dataset.token_ids(index).tolist(), dataset.loss_mask(index).tolist(), strict=True)
    return [
        (tokenizer.decode([token for token, _ in piece]), bool(trained))
        for trained, piece in groupby(pairs, key=lambda pair: pair[1])
    ]
