"""The way of samples into a rank, against plain copies and against the peer's loader on the same objects.

One writer process puts the same objects into a rank's segment and into that of the peer's loader worker. Then both
sides read them in turns, so that a machine that slows down slows both of a pair.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from dspark_train.bench import peer_loader, rank_path, writer
from dspark_train.bench.children import Answer, Child, proportional_bytes
from dspark_train.bench.limits import loopback_s
from dspark_train.bench.objects import Objects
from dspark_train.bench.spread import Spread, ratios
from dspark_train.bench.store_master import running_master
from dspark_train.store.ports import reserve_port

PASSES = 2
"""How often one measurement reads all objects."""
LOOK_S = 0.02
GB = 1e9
Figures = dict[str, Any]


class Ingest:
    """The processes of the comparison, up and with their objects in place. A context manager."""

    def __init__(self, root: Path) -> None:
        """root: for logs."""
        self.objects = Objects()
        self.num_packs = PASSES * self.objects.num_packs
        self._stack = ExitStack()
        self._root = root

    def __enter__(self) -> Ingest:
        try:
            self._start()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.peer.ask("clear")
        self._stack.close()

    def _start(self) -> None:
        master = self._stack.enter_context(running_master(self._root / "master.log")).rpc
        segment_bytes = self.objects.total_bytes * 3 // 2
        self.rank, self.writer, self.peer = (
            self._stack.enter_context(closing(Child(module.__name__, self._root / f"{name}.log")))
            for name, module in (("rank", rank_path), ("writer", writer), ("peer", peer_loader))
        )
        self.writer.ask("start", master=master)
        ours = self.rank.ask("start", master=master, segment_bytes=segment_bytes)
        theirs = self.peer.ask("start", master=master, segment_bytes=segment_bytes, num_packs=self.num_packs)
        self.segment = str(ours["segment"])
        self._sides = {"ours": ours, "peer": theirs}
        self.puts = [self.writer.ask("fill", prefix="ours/", segment=self.segment)]
        self.writer.ask("fill", prefix="peer/", segment=theirs["segment"])
        self.peer.ask("first")
        self.rank.ask("fetch", num_packs=self.num_packs)

    def pair(self) -> dict[str, Answer]:
        """One measurement of each: a plain copy, the store alone, our rank, the peer's loader."""
        return {
            "memcpy": self.rank.ask("copy", num_packs=self.num_packs),
            "read": self.rank.ask("read", num_packs=self.num_packs),
            "ours": self.rank.ask("fetch", num_packs=self.num_packs),
            "peer": self.peer.ask("fetch"),
        }

    def put(self) -> dict[str, Answer]:
        """One measurement of writes from another process, and one of a plain TCP copy of as many bytes."""
        self.writer.ask("drop", prefix="ours/")
        filled = self.writer.ask("fill", prefix="ours/", segment=self.segment)
        port = reserve_port()
        port.release()
        num_bytes = int(filled["bytes"])
        return {"put": filled, "loopback": {"bytes": num_bytes, "wall_s": loopback_s(num_bytes, port.port)}}

    def peak_bytes(self, side: str) -> int:
        """Memory that a side takes beyond its libraries and the objects in its segment, at most, while it reads."""
        child, fields = (self.rank, {"num_packs": self.num_packs}) if side == "ours" else (self.peer, {})
        told, seen, ended = self._sides[side], [0], threading.Event()

        def look() -> None:
            while not ended.wait(LOOK_S):
                seen.append(sum(proportional_bytes(pid) for pid in told["pids"]))

        watch = threading.Thread(target=look, daemon=True)
        watch.start()
        child.ask("fetch", **fields)
        ended.set()
        watch.join()
        return max(seen) - int(told["imports_bytes"]) - self.objects.total_bytes


def measure(num_pairs: int) -> Figures:
    """The whole comparison. Raises StartError, StoreError."""
    with tempfile.TemporaryDirectory(prefix="dspark-bench-") as root, Ingest(Path(root)) as ingest:
        pairs = [ingest.pair() for _ in range(num_pairs)]
        puts = [ingest.put() for _ in range(num_pairs)]
        peaks = {side: ingest.peak_bytes(side) for side in ("ours", "peer")}
        return figures(pairs, puts, peaks, ingest.objects)


def figures(
    pairs: Sequence[dict[str, Answer]], puts: Sequence[dict[str, Answer]], peaks: dict[str, int], objects: Objects
) -> Figures:
    """What is reported of the measurements: medians, spreads of the ratios, and the pairs themselves."""
    rates = {name: [rate(pair[name]) for pair in pairs] for name in ("memcpy", "read", "ours", "peer")}
    written = {name: [rate(put[name]) for put in puts] for name in ("put", "loopback")}
    over_memcpy, over_peer = ratios(rates["ours"], rates["memcpy"]), ratios(rates["ours"], rates["peer"])
    return {
        "ours_bytes_per_s": Spread.of(rates["ours"]).median,
        "memcpy_bytes_per_s": Spread.of(rates["memcpy"]).median,
        "peer_bytes_per_s": Spread.of(rates["peer"]).median,
        "ours_over_memcpy": over_memcpy.median,
        "ours_over_memcpy_spread": [over_memcpy.low, over_memcpy.high],
        "ours_over_peer": over_peer.median,
        "ours_over_peer_spread": [over_peer.low, over_peer.high],
        "store_alone_bytes_per_s": Spread.of(rates["read"]).median,
        "ours_cpu_s_per_gb": Spread.of([cpu_per_gb(pair["ours"]) for pair in pairs]).median,
        "peer_cpu_s_per_gb": Spread.of([cpu_per_gb(pair["peer"]) for pair in pairs]).median,
        "ours_peak_bytes": peaks["ours"],
        "peer_peak_bytes": peaks["peer"],
        "pack_bytes": objects.pack_bytes,
        "put_bytes_per_s": Spread.of(written["put"]).median,
        "loopback_bytes_per_s": Spread.of(written["loopback"]).median,
        "put_over_loopback": ratios(written["put"], written["loopback"]).median,
        "pairs": list(pairs),
    }


def rate(answer: Answer) -> float:
    """Bytes a second."""
    return float(answer["bytes"]) / float(answer["wall_s"])


def cpu_per_gb(answer: Answer) -> float:
    """CPU seconds a gigabyte (1e9 bytes)."""
    return float(answer["cpu_s"]) / (float(answer["bytes"]) / GB)
