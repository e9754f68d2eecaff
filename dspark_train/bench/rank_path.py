"""The measured process of our side: a rank's client, ring and fetcher, reading packs as a rank in training does.

The ledger is played: it hands out every sample at once. All else is what a rank runs.
"""

from __future__ import annotations

import logging
import os
import time
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from dspark_train.bench.children import Answer, cpu_s, proportional_bytes, serve
from dspark_train.bench.limits import copy_s
from dspark_train.bench.objects import Objects
from dspark_train.errors import StoreError
from dspark_train.schedule.messages import TakenSample, TakeReply
from dspark_train.schedule.unit import Pack, Piece, Unit
from dspark_train.store.on_mooncake import MooncakeClient
from dspark_train.store.protocol import Range
from dspark_train.trainer import fetch
from dspark_train.trainer.ring import PackRing, PackShape, Slot

NUM_SLOTS = 3
PACK_TIMEOUT_S = 60.0
LOCAL_BUFFER_BYTES = 64 << 20


class Played:
    """The ledger, the schedule and the data set of endless units of one pack each."""

    def __init__(self, objects: Objects, num_units: int) -> None:
        self._objects, self._num_units = objects, num_units
        self._ids = {sample: objects.token_ids(sample) for sample in range(objects.num_samples)}

    def unit_at(self, index: int) -> Unit | None:
        """Unit after unit, the packs in turn."""
        if index >= self._num_units:
            return None
        objects, pieces, row = self._objects, [], 0
        first = index % objects.num_packs * len(objects.piece_tokens)
        for sample in range(first, first + len(objects.piece_tokens)):
            pieces.append(Piece(sample, row, objects.num_tokens(sample)))
            row += objects.num_tokens(sample)
        return Unit(index, "train", index + 1, 0, (Pack(index, 0, tuple(pieces)),))

    def token_ids(self, index: int) -> npt.NDArray[np.int64]:
        return self._ids[index]

    def loss_mask(self, index: int) -> npt.NDArray[np.int64]:
        return np.ones_like(self._ids[index])

    def call(self, name: str, method: str, *args: Any, timeout_s: float) -> Any:
        """Answer ``take`` with everything; anything else means that a sample was found wrong."""
        if method != "take":
            raise StoreError(f"the ledger was told {method} {args}")
        unit = self.unit_at(args[1])
        assert unit is not None, "asked for a unit beyond the last"
        sizes = self._objects
        samples = tuple(
            TakenSample(0, index, key_of(piece.sample), sizes.layout(piece.sample).total_bytes)
            for index, piece in enumerate(unit.packs[0].pieces)
        )
        return TakeReply("samples", samples[args[4] :], (), complete=True)

    async def acall(self, name: str, method: str, *args: Any, timeout_s: float) -> Any:
        return self.call(name, method, *args, timeout_s=timeout_s)


def key_of(sample: int) -> str:
    """Of the object in our rank's segment."""
    return f"ours/{sample}"


class RankPath:
    """What this process answers."""

    def __init__(self) -> None:
        self._objects = Objects()
        self._imports_bytes = proportional_bytes(os.getpid())

    def start(self, master: str, segment_bytes: int) -> Answer:
        """Join the store with a segment, and register the ring."""
        torch.set_num_threads(1)
        objects = self._objects
        self._client = MooncakeClient(
            local_hostname="127.0.0.1",
            master=master,
            segment_bytes=segment_bytes,
            buffer_bytes=LOCAL_BUFFER_BYTES,
            timeout_s=PACK_TIMEOUT_S,
        )
        shape = PackShape(objects.seq_len, objects.num_layers, objects.hidden_size, torch.bfloat16)
        self._ring = PackRing(shape, NUM_SLOTS)
        self._client.register(self._ring.address, self._ring.num_bytes)
        return {"segment": self._client.segment, "imports_bytes": self._imports_bytes, "pids": [os.getpid()]}

    def copy(self, num_packs: int) -> Answer:
        """Copy the same bytes from plain memory to the ring's slots."""
        objects, slot_bytes = self._objects, self._ring.shape.slot_bytes
        source = np.ones((objects.num_packs, objects.pack_bytes), dtype=np.uint8)
        sizes = [objects.layout(sample).total_bytes for sample in range(len(objects.piece_tokens))]
        took_s = sum(
            copy_s(self._ring.address + i % NUM_SLOTS * slot_bytes, source[i % objects.num_packs].ctypes.data, sizes)
            for i in range(num_packs)
        )
        return {"bytes": num_packs * objects.pack_bytes, "wall_s": took_s}

    def read(self, num_packs: int) -> Answer:
        """Read packs in calls of one pack, with nothing around it: what the store's client can do."""
        objects, ring = self._objects, self._ring
        played, began_cpu_s, began_s = Played(objects, num_packs), cpu_s(), time.perf_counter()
        for index in range(num_packs):
            unit = played.unit_at(index)
            assert unit is not None
            offset, ranges = index % NUM_SLOTS * ring.shape.slot_bytes, []
            for piece in unit.packs[0].pieces:
                layout, key = objects.layout(piece.sample), key_of(piece.sample)
                row = offset + piece.start_row * objects.bytes_per_token
                ids = offset + ring.shape.tokens_offset + piece.start_row * 8
                ranges.append(Range(key, 0, row, layout.hidden_bytes))
                ranges.append(Range(key, layout.tokens_offset, ids, layout.tokens_bytes))
            reasons = self._client.read(ring.address, ranges)
            if any(reasons):
                raise StoreError(f"unit {index}: {next(filter(None, reasons))}")
        return self._figures(num_packs, began_s, began_cpu_s)

    def fetch(self, num_packs: int) -> Answer:
        """Read packs as a rank does, checks included; each is given back as soon as it is whole."""
        began_cpu_s, began_s = cpu_s(), time.perf_counter()
        played = Played(self._objects, num_packs)
        plan = fetch.FetchPlan("rank-0", played.unit_at, range, 0, NUM_SLOTS, PACK_TIMEOUT_S, 1)
        log = logging.getLogger("bench")
        fetcher = fetch.Fetcher(plan, played, self._client, self._ring, played, lambda keys: None, log)
        fetcher.start()
        for index in range(num_packs):
            slot = fetcher.get(index, 0, PACK_TIMEOUT_S)
            if not isinstance(slot, Slot):
                raise StoreError(f"pack {index} did not come within {PACK_TIMEOUT_S:g} s")
            self._ring.release(slot)
            fetcher.finish(index)
        figures = self._figures(num_packs, began_s, began_cpu_s)
        fetcher.stop(PACK_TIMEOUT_S)
        self._ring.clear()
        return figures

    def _figures(self, num_packs: int, began_s: float, began_cpu_s: float) -> Answer:
        return {
            "bytes": num_packs * self._objects.pack_bytes,
            "wall_s": time.perf_counter() - began_s,
            "cpu_s": cpu_s() - began_cpu_s,
        }


def main() -> None:
    """Answer until standard input ends."""
    path = RankPath()
    serve({"start": path.start, "copy": path.copy, "read": path.read, "fetch": path.fetch})


if __name__ == "__main__":
    main()
