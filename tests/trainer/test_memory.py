"""A rank's memory over a thousand packs, and the store's: real Mooncake, the real ledger, the real fetcher."""

import logging
import os
import time
from typing import Any

import numpy as np
import psutil
import pytest

from dspark_train.schedule.ledger import Ledger
from dspark_train.schedule.messages import Commit, Member, Ready
from dspark_train.schedule.rule import LedgerRule
from dspark_train.schedule.steps import Schedule, ScheduleSpec
from dspark_train.store.protocol import SampleLayout

pytestmark = [pytest.mark.real, pytest.mark.torch, pytest.mark.timeout(600)]
MIB = 2**20
SEQ_LEN, LAYERS, HIDDEN = 256, 4, 512
BYTES_PER_TOKEN = LAYERS * HIDDEN * 2
STEP_PACKS, NUM_PACKS, NUM_SLOTS = 4, 1000, 8
SEGMENT_BYTES, HIGH_MARK = 64 * MIB, 0.5
WARM_UP_PACKS, LATE_STEPS = 100, 4
WAIT_S = 60.0


class Line:
    """Ledger and engine in one: whatever the ledger leases is put at once, into the rank's segment."""

    def __init__(self, schedule: Schedule, puts: Any, staging: np.ndarray, segment: str) -> None:
        rule = LedgerRule("memory/1", 1e9, max_attempts=1, max_failed_frac=0.0, high_mark_frac=HIGH_MARK)
        self.ledger = Ledger(schedule, lambda n: SampleLayout(n, BYTES_PER_TOKEN).total_bytes, rule)
        self.ledger.set_group([Member("rank-0", segment, SEGMENT_BYTES)], 1)
        self.ledger.run()
        self.most_held_bytes = 0
        self._puts, self._staging, self._segment = puts, staging, segment

    def token_ids(self, sample: int) -> np.ndarray:
        return np.arange(SEQ_LEN, dtype=np.int64)

    def loss_mask(self, sample: int) -> np.ndarray:
        return np.ones(SEQ_LEN, dtype=np.int64)

    def call(self, name: str, method: str, *args: Any, timeout_s: float) -> Any:
        if method == "commit":
            return self.ledger.commit(args[0].unit, 1)
        assert method == "take", f"{method} {args}: a sample was found wrong"
        rank, unit, _, generation, num_received = args
        for lease in self.ledger.lease("engine", 8, 10**9, 0.0):
            layout = SampleLayout(lease.num_tokens, BYTES_PER_TOKEN)
            target = self._staging[layout.tokens_offset :][: layout.tokens_bytes]
            target[:] = np.arange(lease.num_tokens, dtype=np.int64).view(np.uint8)
            self._puts.sample(lease.key, self._segment, self._staging.ctypes.data, layout.total_bytes)
            self.ledger.report("engine", [Ready(lease.key, layout.total_bytes)], [], 0.0)
        self.most_held_bytes = max(self.most_held_bytes, self.ledger.view().resident_bytes)
        reply = self.ledger.take(rank, unit, generation, num_received)
        if not reply.samples and not reply.complete:
            time.sleep(0.001)
        return reply

    async def acall(self, name: str, method: str, *args: Any, timeout_s: float) -> Any:
        return self.call(name, method, *args, timeout_s=timeout_s)


def resident_bytes() -> int:
    return int(psutil.Process(os.getpid()).memory_info().rss)


def test_memory_stays_flat_over_a_thousand_packs_and_the_store_below_its_mark(mooncake_master):
    import torch

    from dspark_train.engine.puts import Puts
    from dspark_train.store.on_mooncake import MooncakeClient, join
    from dspark_train.trainer.fetch import Fetcher, FetchPlan
    from dspark_train.trainer.remover import Remover
    from dspark_train.trainer.ring import PackRing, PackShape, Slot

    def new_schedule() -> Schedule:
        lengths = np.full(400, SEQ_LEN)
        lengths[::3] = SEQ_LEN // 4
        return Schedule(
            ScheduleSpec(lengths, SEQ_LEN, STEP_PACKS, seed=1, max_steps=NUM_PACKS // STEP_PACKS, validation_frac=0.0)
        )

    native = join(local_hostname="127.0.0.1", master=mooncake_master.rpc, buffer_bytes=16 * MIB)
    client = MooncakeClient(
        local_hostname="127.0.0.1",
        master=mooncake_master.rpc,
        segment_bytes=SEGMENT_BYTES,
        buffer_bytes=16 * MIB,
        timeout_s=WAIT_S,
    )
    log, units = logging.getLogger("memory"), new_schedule()
    size = SampleLayout(SEQ_LEN, BYTES_PER_TOKEN).total_bytes
    staging = np.random.default_rng(0).integers(0, 120, size, dtype=np.uint8)  # no pattern of it is infinite or NaN
    assert native.register_buffer(staging.ctypes.data, size) == 0
    ring = PackRing(PackShape(SEQ_LEN, LAYERS, HIDDEN, torch.bfloat16), NUM_SLOTS)
    client.register(ring.address, ring.num_bytes)
    line = Line(new_schedule(), Puts(native), staging, client.segment)
    unit_at = lambda index: units.unit(index) if index < units.num_units else None  # noqa: E731
    fetcher = Fetcher(FetchPlan("rank-0", unit_at, range, 0, 2, WAIT_S, 1), line, client, ring, line, list, log)
    remover = Remover(client, log)
    num_packs, before_bytes, most_bytes, most_used_bytes = 0, 0, 0, 0
    first_used_bytes = mooncake_master.figures().used_bytes
    fetcher.start()
    try:
        for unit in range(units.num_units):
            for pack in range(STEP_PACKS):
                slot = fetcher.get(unit, pack, WAIT_S)
                assert isinstance(slot, Slot), f"pack {pack} of unit {unit} did not come"
                ring.release(slot)
                num_packs += 1
            remover.remove(fetcher.finish(unit))
            assert line.call("ledger", "commit", Commit(unit, 1), timeout_s=WAIT_S)
            if num_packs == WARM_UP_PACKS:
                before_bytes = resident_bytes()
            if num_packs % 40 == 0:
                most_bytes = max(most_bytes, resident_bytes())
                most_used_bytes = max(most_used_bytes, mooncake_master.figures().used_bytes - first_used_bytes)
    finally:
        assert fetcher.stop(WAIT_S)
        assert remover.stop(WAIT_S)
        client.unregister(ring.address)
        client.close()
        native.close()
    assert num_packs == NUM_PACKS
    assert most_bytes - before_bytes < 16 * MIB, "what was carried meanwhile is over 900 MiB"
    assert 0 < line.most_held_bytes <= HIGH_MARK * SEGMENT_BYTES
    # What is committed is removed a moment later: that is what the part above the mark is for.
    assert most_used_bytes <= HIGH_MARK * SEGMENT_BYTES + LATE_STEPS * STEP_PACKS * size < SEGMENT_BYTES
    assert mooncake_master.figures().num_evicted == 0
