"""The measured process of the peer's side: speculators' data loader over hs-connectors' Mooncake transfer, one worker.

Everything between the object in the store and the batch in the training process is theirs: poll, read, clone, finite
checks, collation, the hop through shared memory. Replaced are only the request to an engine, which is answered at
once, and the removal of what was read, so that it can be read again; both are in the peer's favour, as is that every
object lies in the worker's own segment.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hs_connectors.mooncake_store as peer_store
import psutil
import speculators.train.data as peer_data
import torch
from datasets import Dataset as Rows
from hs_connectors.transfer import MooncakeTransfer
from speculators.train.dataloader import _setup_dataloader

from dspark_train.bench.children import Answer, proportional_bytes, serve
from dspark_train.bench.objects import Objects

LOCAL_BUFFER_BYTES = 64 << 20
SETUP_TIMEOUT_S = 120.0
LOOK_S = 0.01
PREFIX = "peer/"


class KeptTransfer(MooncakeTransfer):  # type: ignore[misc]
    """Their transfer, which keeps what was read, and says where its segment is."""

    def __init__(self, store: Any, told: str) -> None:
        """told: the file that gets the name of the segment."""
        super().__init__(store)
        self._told = Path(told)

    def setup(self) -> None:
        """Join the store, in the worker."""
        imports_bytes = proportional_bytes(os.getpid())
        super().setup()
        partial = self._told.with_suffix(".partial")
        partial.write_text(f"{self.store._require_store().get_hostname()} {os.getpid()} {imports_bytes}")
        partial.rename(self._told)

    def delete(self, handle: str) -> None:
        """Keep it."""


class AnsweredDataset(peer_data.ArrowDataset):  # type: ignore[misc]
    """Their data set, whose requests are answered at once: the first token id says which object it is."""

    def _setup_client(self) -> None:
        peer_data.generate_hidden_states = _answer
        self.transfer.setup()
        self.client = True


def _answer(client: Any, model: Any, item: dict[str, Any], **settings: Any) -> tuple[str, dict[str, Any]]:
    """The handle and the manifest that hs-connectors' connector would answer."""
    objects, sample = Objects(), item["input_ids"][0]
    num_tokens = objects.num_tokens(sample)
    shape = (num_tokens, objects.num_layers, objects.hidden_size)
    tensors, total_bytes = peer_store.packed_layout(
        {"hidden_states": (shape, torch.bfloat16), "token_ids": ((num_tokens,), torch.int64)}
    )
    manifest = {
        "handle": f"{PREFIX}{sample}",
        "version": peer_store.VERSION,
        "tensors": tensors,
        "metadata": {"num_tokens": num_tokens, "total_aligned_bytes": total_bytes},
    }
    return manifest["handle"], manifest


class PeerLoader:
    """What this process answers."""

    def __init__(self) -> None:
        self._objects = Objects()
        self._root = Path(tempfile.mkdtemp(prefix="dspark-bench-"))
        self._told = self._root / "segment"
        self._batches: Iterator[Any] = iter(())
        self._imports_bytes = proportional_bytes(os.getpid())

    def start(self, master: str, segment_bytes: int, num_packs: int) -> Answer:
        """Build the loader for epochs of ``num_packs``, and start its worker, which then waits for its first object."""
        torch.set_num_threads(1)
        objects = self._objects
        samples = [index % objects.num_samples for index in range(num_packs * len(objects.piece_tokens))]
        ids = [objects.token_ids(sample).tolist() for sample in samples]
        columns = {"input_ids": ids, "loss_mask": ids, "seq_len": [len(row) for row in ids]}
        Rows.from_dict(columns).with_format("torch").save_to_disk(str(self._root / "rows"))
        config = peer_store.MooncakeStoreConfig(
            local_hostname="127.0.0.1",
            master_server_address=master,
            global_segment_size=segment_bytes,
            local_buffer_size=LOCAL_BUFFER_BYTES,
        )
        transfer = KeptTransfer(peer_store.MooncakeHiddenStatesStore(config), str(self._told))
        data = AnsweredDataset(max_len=objects.seq_len, datapath=str(self._root / "rows"), transfer=transfer)
        self._loader = _setup_dataloader(
            data,
            objects.seq_len,
            objects.hidden_size,
            num_workers=1,
            num_target_layers=objects.num_layers - 1,
        )
        self._batches = iter(self._loader)
        segment, pid, imports_bytes = self._segment()
        self._worker = psutil.Process(pid)
        return {"segment": segment, "imports_bytes": self._imports_bytes + imports_bytes, "pids": [os.getpid(), pid]}

    def first(self) -> Answer:
        """The epoch that was begun by the start, untimed."""
        for _ in self._batches:
            pass
        return {}

    def fetch(self) -> Answer:
        """One epoch: every batch is given up as soon as it is there."""
        began_cpu_s, began_s = self._cpu_s(), time.perf_counter()
        num_tokens = 0
        for batch in iter(self._loader):
            num_tokens += int((batch["document_ids"] >= 0).sum())
        return {
            "bytes": num_tokens * (self._objects.bytes_per_token + 8),
            "wall_s": time.perf_counter() - began_s,
            "cpu_s": self._cpu_s() - began_cpu_s,
        }

    def clear(self) -> Answer:
        """Remove what was written to disk."""
        shutil.rmtree(self._root, ignore_errors=True)
        return {}

    def _cpu_s(self) -> float:
        times = [process.cpu_times() for process in (psutil.Process(), self._worker)]
        return sum(time_s.user + time_s.system for time_s in times)

    def _segment(self) -> tuple[str, int, int]:
        deadline_s = time.monotonic() + SETUP_TIMEOUT_S
        while not self._told.exists():
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"the loader's worker has not joined the store within {SETUP_TIMEOUT_S:g} s")
            time.sleep(LOOK_S)
        segment, pid, imports_bytes = self._told.read_text().split()
        return segment, int(pid), int(imports_bytes)


def main() -> None:
    """Answer until standard input ends."""
    loader = PeerLoader()
    serve({"start": loader.start, "first": loader.first, "fetch": loader.fetch, "clear": loader.clear})


if __name__ == "__main__":
    main()
