"""The measured process that writes: puts objects into the segment of another process, as an engine's connector does."""

from __future__ import annotations

import time

import numpy as np

from dspark_train.bench.children import Answer, cpu_s, serve
from dspark_train.bench.objects import Objects
from dspark_train.engine.puts import Puts, limit_transfers
from dspark_train.errors import StoreError
from dspark_train.store.on_mooncake import join

LOCAL_BUFFER_BYTES = 64 << 20


class Writer:
    """What this process answers."""

    def __init__(self) -> None:
        self._objects = Objects()

    def start(self, master: str) -> Answer:
        """Join the store without a segment, and register a staging buffer of one sample."""
        limit_transfers()
        self._native = join(local_hostname="127.0.0.1", master=master, buffer_bytes=LOCAL_BUFFER_BYTES)
        self._puts = Puts(self._native)
        samples = range(len(self._objects.piece_tokens))
        most_bytes = max(self._objects.layout(sample).total_bytes for sample in samples)
        self._staging = np.zeros(most_bytes, dtype=np.uint8)
        status = self._native.register_buffer(self._staging.ctypes.data, most_bytes)
        if status:
            raise StoreError(f"registering {most_bytes} bytes: status {status}")
        return {}

    def fill(self, prefix: str, segment: str) -> Answer:
        """Put every object as ``prefix`` and its number. Only the puts are timed."""
        num_bytes, wall_s, spent_s = 0, 0.0, 0.0
        for sample in range(self._objects.num_samples):
            size = self._objects.fill(sample, self._staging)
            began_cpu_s, began_s = cpu_s(), time.perf_counter()
            self._puts.sample(f"{prefix}{sample}", segment, self._staging.ctypes.data, size)
            wall_s += time.perf_counter() - began_s
            spent_s += cpu_s() - began_cpu_s
            num_bytes += size
        return {"bytes": num_bytes, "wall_s": wall_s, "cpu_s": spent_s}

    def drop(self, prefix: str) -> Answer:
        """Remove those again."""
        keys = [f"{prefix}{sample}" for sample in range(self._objects.num_samples)]
        self._native.batch_remove(keys, True)
        return {}


def main() -> None:
    """Answer until standard input ends."""
    writer = Writer()
    serve({"start": writer.start, "fill": writer.fill, "drop": writer.drop})


if __name__ == "__main__":
    main()
