"""The measured process of a trainer alone: a rank as in a run, whose samples are all in its segment before it begins.

They are those of the stand-in, put by the code that puts for it, so that no engine is needed.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

from dspark_train.bench.children import Answer, serve
from dspark_train.bench.members import GENERATION, LOOPBACK, Run, Side, be_worker
from dspark_train.controller.ledger_service import LedgerService
from dspark_train.data.dataset import Dataset
from dspark_train.engine.extract import HiddenShape
from dspark_train.engine.stand_in_states import StandInStates
from dspark_train.engine.stand_in_writers import SampleWriter
from dspark_train.errors import StartError
from dspark_train.schedule.messages import Lease, Ready
from dspark_train.store.on_mooncake import join
from dspark_train.trainer.group import GroupSpec
from dspark_train.trainer.rank import Rank

LEASE_SAMPLES, LEASE_TOKENS = 256, 1 << 30
NUM_WARM_UP_STEPS = 3
LOOK_S = 0.2
STILL_S = 120.0
"""How long no step may end. The first one takes longest."""
STOP_GRACE_S = 10.0


class TrainerAlone:
    """What this process answers."""

    def start(self, run_dir: str, core: int) -> Answer:
        """Build the rank on one core, and put every sample of its steps into its segment."""
        be_worker(core)
        self._side = side = Side(run_dir)
        self._rank = Rank(run_dir, "rank-0", side)
        told = self._rank.start(side.hosts, side.ports)
        side.begin(told["segment"])
        self._fill()
        return {}

    def measure(self) -> Answer:
        """Train to the end; tokens a second of the steps after the first few, waits for samples left out."""
        address, port = self._rank.reserve_rendezvous()
        self._rank.join(GroupSpec(GENERATION, 1, 0, address or LOOPBACK, port, 0, 0))
        progress = Progress(time.monotonic())
        while (status := self._side.run(self._status()))["state"] == "training":
            progress.check(status["step"], time.monotonic())
            time.sleep(LOOK_S)
        if status["state"] != "done":
            raise StartError(f"the rank is {status['state']}: {status['error']}")
        lines = [json.loads(line) for line in self._side.layout.metrics.read_text(encoding="utf-8").splitlines()]
        return {"tokens_per_s": trained_tokens_per_s(lines[NUM_WARM_UP_STEPS:])}

    def stop(self) -> Answer:
        """End it."""
        self._rank.stop(STOP_GRACE_S)
        self._side.close()
        return {}

    async def _status(self) -> dict[str, Any]:
        return await self._rank.status()

    def _fill(self) -> None:
        """Put every sample of the run into the rank's segment."""
        resolved, side = self._side.resolved, self._side
        shape = HiddenShape.of(resolved)
        assert resolved.layer_ids is not None, "the plan is not resolved"
        store = resolved.topology.store
        native = join(
            local_hostname=LOOPBACK,
            master=side.rpc,
            buffer_bytes=store.client_buffer_mib << 20,
            protocol=store.protocol,
            device=store.device,
        )
        writer = SampleWriter(native, StandInStates(resolved.layer_ids, shape.hidden_size), shape)
        data = Dataset.open(resolved.topology.data.path)

        def put(lease: Lease) -> Ready:
            ids = data.token_ids(lease.sample)[: lease.num_tokens].tolist()
            writer.put(ids, lease.key, lease.segment)
            return Ready(lease.key, shape.layout(lease.num_tokens).total_bytes)

        put_all(side.ledger, side.run, put)
        native.close()


class Progress:
    """Notices where a rank stands still."""

    def __init__(self, now_s: float) -> None:
        self._step, self._since_s = 0, now_s

    def check(self, step: int, now_s: float) -> None:
        """Raise StartError where this has been the rank's step for too long."""
        if step != self._step:
            self._step, self._since_s = step, now_s
        elif now_s - self._since_s > STILL_S:
            raise StartError(f"the rank has done nothing for {STILL_S:g} s after step {step}, with all samples there")


def put_all(ledger: LedgerService, run: Run, put: Callable[[Lease], Ready]) -> None:
    """Put every sample of the run that the ledger keeps.

    Raises StartError where it leases only a part of them: the trainer would wait for the rest for ever.
    """
    while leases := run(ledger.lease("fill", LEASE_SAMPLES, LEASE_TOKENS, 0.0)):
        run(ledger.report("fill", [put(lease) for lease in leases], []))
    view = run(ledger.view())
    if num_missing := view.planned + view.leased + view.failed:
        why = view.reason or "the ledger opens only so many units ahead, and fills a segment to its mark"
        raise StartError(f"{num_missing} samples of the run are not in the segment, {view.ready} are: {why}")


def trained_tokens_per_s(steps: list[dict[str, Any]]) -> float:
    """Lines of metrics.jsonl -> tokens a second of work. Raises StartError where there are none."""
    work_s = sum(step["step_s"] - step["wait_s"] for step in steps)
    if work_s <= 0:
        raise StartError("the run has too few steps to measure: raise --steps")
    return float(sum(step["tokens"] for step in steps) / work_s)


def main() -> None:
    """Answer until standard input ends."""
    alone = TrainerAlone()
    serve({"start": alone.start, "measure": alone.measure, "stop": alone.stop})


if __name__ == "__main__":
    main()
