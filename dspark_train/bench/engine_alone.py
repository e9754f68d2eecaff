"""The measured process of an engine alone: engine and feeder as in a run, and nobody who trains.

A rank is played that takes every sample as soon as it is ready and removes it, so that the engine never waits.
"""

from __future__ import annotations

import threading
import time
from typing import Any

from dspark_train.bench.children import Answer, serve
from dspark_train.bench.members import GENERATION, LOOPBACK, Side, be_worker
from dspark_train.engine.engine import Engine
from dspark_train.schedule.messages import Commit
from dspark_train.store.on_mooncake import connect

NAME = "engine-1.0"
TAKE_WAIT_S = 0.5
STOP_GRACE_S = 10.0
STORE_TIMEOUT_S = 30.0


class EngineAlone:
    """What this process answers."""

    def start(self, run_dir: str, core: int) -> Answer:
        """Start engine and store on one core, and let samples flow."""
        be_worker(core)
        self._side = side = Side(run_dir)
        self._engine = Engine(run_dir, NAME, 0, side)
        own = {f"{NAME}.{name}": port for name, port in self._engine.reserve_ports().items()}
        self._engine.start(side.hosts, side.ports | own)
        self._client = connect(
            side.resolved.topology.store,
            host=LOOPBACK,
            master=side.rpc,
            segment_bytes=side.resolved.segment_bytes,
            timeout_s=STORE_TIMEOUT_S,
        )
        self._engine.probe(self._client.segment)
        side.begin(self._client.segment)
        side.run(self._feed())
        self._ended = threading.Event()
        threading.Thread(target=self._take_all, name="take", daemon=True).start()
        return {}

    def measure(self, warm_up_s: float, for_s: float) -> Answer:
        """Tokens a second that arrived in the store, after a time in which it gets into its stride."""
        time.sleep(warm_up_s)
        before, began_s = self._num_tokens(), time.perf_counter()
        time.sleep(for_s)
        return {"tokens_per_s": (self._num_tokens() - before) / (time.perf_counter() - began_s)}

    def stop(self) -> Answer:
        """End it."""
        self._ended.set()
        self._side.run(self._engine.stop(STOP_GRACE_S))
        self._client.close()
        self._side.close()
        return {}

    async def _feed(self) -> None:
        await self._engine.feed()

    def _num_tokens(self) -> int:
        status: dict[str, Any] = self._side.run(self._engine.status())
        if status["error"] or status["state"] == "dead":
            return 0
        return int(status["tokens"])

    def _take_all(self) -> None:
        unit = 0
        keys: list[str] = []
        while not self._ended.is_set():
            reply = self._side.run(self._side.ledger.take("rank-0", unit, TAKE_WAIT_S, GENERATION))
            if reply.kind != "samples":
                return
            keys += [sample.key for sample in reply.samples]
            if reply.complete:
                self._client.remove(keys)
                self._side.run(self._side.ledger.commit(Commit(unit, GENERATION, {"step": unit + 1})))
                unit, keys = unit + 1, []


def main() -> None:
    """Answer until standard input ends."""
    alone = EngineAlone()
    serve({"start": alone.start, "measure": alone.measure, "stop": alone.stop})


if __name__ == "__main__":
    main()
