"""From a pack buffer to the model's arguments: views, never copies, of what the store wrote.

The reference is speculators' CollateFn: the same samples in the same rows give the same arguments. It drops a sample it
could not get and moves the next ones up; here every sample has its place from the schedule, so one that was given up
leaves a hole of zeros, masked like padding.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch

from dspark_train.schedule.unit import Piece
from dspark_train.trainer.drafts import Batch, Draft, Sample
from dspark_train.trainer.ring import PackShape, Slot

PADDING_DOCUMENT = -1


class TokenRows(Protocol):
    """The data set as a rank reads it: the tokens and the loss mask of its rows, int64 or bool [tokens]."""

    def token_ids(self, index: int) -> np.ndarray: ...

    def loss_mask(self, index: int) -> np.ndarray: ...


def loss_mask_row(pieces: Sequence[Piece], masks: Sequence[np.ndarray], failed: frozenset[int], seq_len: int) -> Batch:
    """The small tensors of a pack, each int64 [1, seq_len]: loss_mask, document_ids, position_ids.

    masks: one a piece, of its sample's tokens or more. document_ids is -1, and the others 0, on padding and on pieces
    in ``failed``.
    """
    loss_mask = torch.zeros(1, seq_len, dtype=torch.int64)
    document_ids = torch.full((1, seq_len), PADDING_DOCUMENT, dtype=torch.int64)
    position_ids = torch.zeros(1, seq_len, dtype=torch.int64)
    for index, (piece, mask) in enumerate(zip(pieces, masks, strict=True)):
        if index in failed:
            continue
        rows = slice(piece.start_row, piece.start_row + piece.num_tokens)
        loss_mask[0, rows] = torch.from_numpy(np.array(mask[: piece.num_tokens], dtype=np.int64))
        document_ids[0, rows] = index
        position_ids[0, rows] = torch.arange(piece.num_tokens)
    return {"loss_mask": loss_mask, "document_ids": document_ids, "position_ids": position_ids}


def zero_gaps(slot: Slot, pieces: Sequence[Piece], failed: frozenset[int]) -> None:
    """Zero every row of the slot that no good sample fills: stale rows of an earlier pack, and failed pieces."""
    good = sorted((p for i, p in enumerate(pieces) if i not in failed), key=lambda p: p.start_row)
    row = 0
    for start, end in [*((p.start_row, p.start_row + p.num_tokens) for p in good), (slot.hidden.shape[0], 0)]:
        slot.hidden[row:start].zero_()
        slot.token_ids[row:start].zero_()
        row = end


def pack_batch(hidden: torch.Tensor, token_ids: torch.Tensor, small: Batch) -> Batch:
    """The model's arguments from a pack's memory, as views.

    hidden: [seq_len, layers, hidden], the last layer last; token_ids: int64 [seq_len]; small: of `loss_mask_row`.
    Gives hidden_states [1, seq_len, (layers - 1) * hidden], verifier_last_hidden_states [1, seq_len, hidden],
    input_ids [1, seq_len] and the small ones.
    """
    return {
        "hidden_states": hidden[:, :-1].flatten(1).unsqueeze(0),
        "verifier_last_hidden_states": hidden[:, -1].unsqueeze(0),
        "input_ids": token_ids.unsqueeze(0),
        **small,
    }


def on_device(slot: Slot, small: Batch, device: torch.device) -> Batch:
    """The pack's arguments on ``device``.

    On CPU these are views of the slot (converted where it does not hold float32): the slot stays in use until the
    backward pass is over. On CUDA the whole slot is copied in one transfer, which is over when this returns.
    """
    if device.type == "cpu":
        return pack_batch(slot.hidden.to(torch.float32), slot.token_ids, small)
    hidden, token_ids = (tensor.to(device, non_blocking=True) for tensor in (slot.hidden, slot.token_ids))
    moved = {key: value.to(device, non_blocking=True) for key, value in small.items()}
    torch.cuda.current_stream(device).synchronize()
    return pack_batch(hidden, token_ids, moved)


def preprocessed(draft: Draft, batch: Batch, pieces: Sequence[Piece], failed: frozenset[int]) -> Batch:
    """For algorithms that shift or rename per sample: the pack taken apart, preprocessed, packed again in copies."""
    samples: list[Sample] = []
    for index, piece in enumerate(pieces):
        if index in failed:
            continue
        rows = slice(piece.start_row, piece.start_row + piece.num_tokens)
        sample = {key: value[0, rows] for key, value in batch.items() if key != "document_ids"}
        samples.append({**sample, "lengths": torch.tensor([piece.num_tokens])})
    _, seq_len = batch["input_ids"].shape
    device = batch["input_ids"].device
    return {key: value.to(device) for key, value in draft.collate(samples, seq_len).items()}


def padding(draft: Draft, shape: PackShape, device: torch.device) -> Batch:
    """The model's arguments for a pack without samples. For passes that only keep ranks in step."""
    batch = empty_pack(shape, device)
    return batch if draft.preprocess is None else preprocessed(draft, batch, (), frozenset())


def empty_pack(shape: PackShape, device: torch.device) -> Batch:
    """A pack without samples: all padding."""
    hidden = torch.zeros(
        shape.seq_len,
        shape.num_layers,
        shape.hidden_size,
        dtype=torch.float32 if device.type == "cpu" else shape.dtype,
        device=device,
    )
    small = {key: value.to(device) for key, value in loss_mask_row((), (), frozenset(), shape.seq_len).items()}
    return pack_batch(hidden, torch.zeros(shape.seq_len, dtype=torch.int64, device=device), small)
