"""The measured process of a trainer alone: a rank as in a run, whose samples are all in its segment before it begins.

They are those of the stand-in, put by the code that puts for it, so that no engine is needed.
"""

from __future__ import annotations

import json
import time
from typing import Any

from dspark_train.bench.children import Answer, serve
from dspark_train.bench.members import GENERATION, LOOPBACK, Side, pin
from dspark_train.data.dataset import Dataset
from dspark_train.engine.extract import HiddenShape
from dspark_train.engine.stand_in_states import StandInStates
from dspark_train.engine.stand_in_writers import SampleWriter
from dspark_train.errors import StartError
from dspark_train.schedule.messages import Ready
from dspark_train.store.on_mooncake import join
from dspark_train.trainer.group import GroupSpec
from dspark_train.trainer.rank import Rank

LEASE_SAMPLES, LEASE_TOKENS = 256, 1 << 30
NUM_WARM_UP_STEPS = 3
LOOK_S = 0.2
STOP_GRACE_S = 10.0


class TrainerAlone:
    """What this process answers."""

    def start(self, run_dir: str, core: int) -> Answer:
        """Build the rank on one core, and put every sample of its steps into its segment."""
        pin(core)
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
        while (state := self._side.run(self._status())["state"]) == "training":
            time.sleep(LOOK_S)
        if state != "done":
            raise StartError(f"the rank is {state}: {self._side.run(self._status())['error']}")
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
        """Put all that can be leased: the segment holds the whole run."""
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
        while leases := side.run(side.ledger.lease("fill", LEASE_SAMPLES, LEASE_TOKENS, 0.0)):
            done = []
            for lease in leases:
                ids = data.token_ids(lease.sample)[: lease.num_tokens].tolist()
                writer.write(ids, lease.key, lease.segment)
                done.append(Ready(lease.key, shape.layout(lease.num_tokens).total_bytes))
            side.run(side.ledger.report("fill", done, []))
        native.close()


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
