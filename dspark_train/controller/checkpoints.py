"""The checkpoints that a run may go on from."""

from __future__ import annotations

from collections.abc import Iterator

from dspark_train.controller.board import Board
from dspark_train.trainer.checkpoint_files import find_latest, problems


def sound_steps(board: Board) -> Iterator[int]:
    """Steps of the undamaged checkpoints, newest first; each damaged one on the way is journalled."""
    for found in find_latest(board.layout.checkpoints):
        if wrong := problems(found.path):
            reject(board, found.step, "; ".join(wrong))
        else:
            yield found.step


def reject(board: Board, step: int, why: str) -> None:
    """Say that a checkpoint is passed over."""
    text = f"the checkpoint of step {step} is not used: {why}"
    board.warn("checkpoint.rejected", "controller", text, step=step)
