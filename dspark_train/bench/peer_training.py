"""The measured process of the peer's own online training: speculators' `train`, run as it is but for three patches.

They are all about its refusing a CPU, and are shown with the figures.
"""

from __future__ import annotations

import contextlib
import logging
import time
from typing import Any

import speculators.train.distributed as peer_distributed
import speculators.train.trainer as peer_trainer
import torch
from speculators.train.cli import main as peer_main
from speculators.train.config import TrainConfig

from dspark_train.bench.children import Answer, serve
from dspark_train.bench.members import pin

PATCHES = (
    'speculators.train.distributed.get_local_rank, speculators.train.trainer.get_local_rank -> "cpu"',
    "torch.accelerator.synchronize -> nothing",
    'torch.autocast -> of device "cpu", off for float32',
)
_autocast = torch.autocast


def patch_for_cpu() -> None:
    """Let speculators train on a CPU: see PATCHES."""
    peer_distributed.get_local_rank = peer_trainer.get_local_rank = lambda: "cpu"
    torch.accelerator.synchronize = lambda *device: None
    torch.autocast = _on_cpu


def _on_cpu(device_type: str, dtype: torch.dtype) -> Any:
    return _autocast("cpu", dtype=dtype, enabled=dtype is not torch.float32)


class Enough(Exception):
    """All steps are done. Their loop would go on to validate once for each epoch that is left."""


class Steps(logging.Filter):
    """Sees what their trainer logs of each step, and when; ends it after the last one. Raises Enough."""

    def __init__(self, num_steps: int) -> None:
        super().__init__()
        self.seen: list[dict[str, Any]] = []
        self._num_steps = num_steps

    def filter(self, record: logging.LogRecord) -> bool:
        if isinstance(record.msg, dict) and "train" in record.msg:
            told = {"at_s": time.perf_counter(), "epoch": record.msg["epoch"], "loss": record.msg["train"]["loss"]}
            self.seen.append({**told, **{f"profile_{key}": v for key, v in (record.msg["profile"] or {}).items()}})
            if len(self.seen) >= self._num_steps:
                raise Enough
        return True


def train(flat: dict[str, Any], core: int) -> Answer:
    """Their training from a flat configuration; what was seen of its steps."""
    pin(core)
    torch.set_num_threads(1)
    patch_for_cpu()
    steps = Steps(int(flat["max_steps"]))
    logging.getLogger("speculators.metrics").addFilter(steps)
    with contextlib.suppress(Enough):
        peer_main(TrainConfig.from_flat(flat))
    return {"steps": steps.seen, "patches": list(PATCHES)}


def main() -> None:
    """Answer until standard input ends."""
    serve({"train": train})


if __name__ == "__main__":
    main()
