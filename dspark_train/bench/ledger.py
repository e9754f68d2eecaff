"""How many operations a second the ledger does: the pure one, the service, and the service under a thousand engines.

An operation is one call: a lease, a report, a take or a commit. Calls carry one sample each unless said otherwise,
which is what engines make of it that are slow beside the ledger; a busy ledger is called less often, with more.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dspark_train.bench.spread import Spread
from dspark_train.controller.ledger_service import LedgerService
from dspark_train.plan.run_layout import RunLayout
from dspark_train.schedule.layout import SampleLayout
from dspark_train.schedule.ledger import Ledger
from dspark_train.schedule.messages import Commit, Lease, Member, Ready
from dspark_train.schedule.rule import LedgerRule
from dspark_train.schedule.steps import Schedule, ScheduleSpec
from dspark_train.topology.facts import TargetFacts
from dspark_train.topology.resolve import Resolved, resolve
from dspark_train.topology.schema import Topology

NUM_ENGINES, SAMPLES_PER_S = 1000, 10.0
"""The load: so many engines, and what each of them extracts."""
NUM_RANKS, NUM_SAMPLES, SEQ_LEN, STEP_PACKS = 16, 100_000, 4096, 256
NUM_LAYERS, HIDDEN_SIZE, VALUE_BYTES = 4, 64, 4
SEGMENT_GIB = 8.0
BYTES_PER_TOKEN = NUM_LAYERS * HIDDEN_SIZE * VALUE_BYTES
MAX_TOKENS = 1 << 30
GENERATION = 1
LONG_WAIT_S = 5.0


def measure(num_runs: int, call_samples: int = 4) -> dict[str, Any]:
    """All figures, each the median of several runs. call_samples: samples in one lease and one report, batched.

    engines_core_frac: of one core, that 1,000 engines of 10 samples a second each take where every call carries one
    sample; in calls of ``call_samples``, engines_core_frac_batched.
    """
    lengths = np.random.default_rng(0).integers(100, 2000, NUM_SAMPLES)
    pure = [pure_ops_per_s(lengths, 1) for _ in range(num_runs)]
    single = [asyncio.run(service_load(lengths, 1)) for _ in range(num_runs)]
    batched = [asyncio.run(service_load(lengths, call_samples)) for _ in range(num_runs)]
    return {
        "ops_per_s": Spread.of([load.ops_per_s for load in single]).median,
        "ops_per_s_spread": [min(load.ops_per_s for load in single), max(load.ops_per_s for load in single)],
        "pure_ops_per_s": Spread.of(pure).median,
        "engines_core_frac": Spread.of([load.core_frac for load in single]).median,
        "engines_core_frac_batched": Spread.of([load.core_frac for load in batched]).median,
        "num_engines": NUM_ENGINES,
        "samples_per_s_an_engine": SAMPLES_PER_S,
        "call_samples": call_samples,
    }


class Load:
    """What was done in how much CPU time."""

    def __init__(self, num_calls: int, num_samples: int, cpu_s: float) -> None:
        self.ops_per_s = num_calls / cpu_s
        self.core_frac = NUM_ENGINES * SAMPLES_PER_S * cpu_s / num_samples


def pure_ops_per_s(lengths: np.ndarray, call_samples: int) -> float:
    """Calls a second of `schedule.ledger.Ledger`, one epoch from planned to trained."""
    schedule = Schedule(_spec(lengths))
    rule = LedgerRule("bench/0", 60.0, max_attempts=4, max_failed_frac=0.01, high_mark_frac=0.9)
    ledger = Ledger(schedule, _sample_bytes, rule)
    ledger.set_group(_members(), GENERATION)
    ledger.run()
    ledger.view()
    num_calls, engine, began_s = 0, 0, time.process_time()
    while ledger.state == "running":
        name, engine = f"engine-{engine}", (engine + 1) % NUM_ENGINES
        leases = ledger.lease(name, call_samples, MAX_TOKENS, 0.0)
        ledger.report(name, _done(leases), [], 0.0)
        num_calls += 2
        if not leases:
            for rank in range(NUM_RANKS):
                ledger.take(f"rank-{rank}", ledger.unit, GENERATION)
            num_calls += NUM_RANKS + ledger.commit(ledger.unit, GENERATION)
    return num_calls / (time.process_time() - began_s)


async def service_load(lengths: np.ndarray, call_samples: int) -> Load:
    """The service with all its engines and ranks in one event loop, without a transport: its own cost, and theirs.

    Engines ask in turns and report what they got; ranks take whenever there is no more room, as they do in a run.
    """
    with tempfile.TemporaryDirectory(prefix="dspark-bench-") as root:
        service = LedgerService(root, 0, resolved=_resolved(root), lengths_tokens=lengths)
        RunLayout(Path(root)).metrics.touch()
        await service.set_group(_members(), GENERATION)
        await service.run()
        num_units = Schedule(_spec(lengths)).num_units
        num_calls = num_samples = unit = engine = 0
        began_s = time.process_time()
        while unit < num_units:
            name, engine = f"engine-{engine}", (engine + 1) % NUM_ENGINES
            leases = await service.lease(name, call_samples, MAX_TOKENS, 0.0)
            num_samples += len(leases)
            if leases:
                await service.report(name, _done(leases), [])
                num_calls += 2
                continue
            for rank in range(NUM_RANKS):
                await service.take(f"rank-{rank}", unit, 0.0, GENERATION, 0)
            unit += await service.commit(Commit(unit, GENERATION, {"step": unit + 1}))
            num_calls += NUM_RANKS + 2
        spent_s = time.process_time() - began_s
        view = await service.view()
        assert view.trained == num_samples, f"{num_samples} leases, {view.trained} samples trained"
        await service.stop()
    return Load(num_calls, num_samples, spent_s)


def _done(leases: Sequence[Lease]) -> list[Ready]:
    return [Ready(lease.key, _sample_bytes(lease.num_tokens)) for lease in leases]


def _sample_bytes(num_tokens: int) -> int:
    return SampleLayout(num_tokens, BYTES_PER_TOKEN).total_bytes


def _members() -> list[Member]:
    return [Member(f"rank-{i}", f"segment-{i}", int(SEGMENT_GIB * 2**30)) for i in range(NUM_RANKS)]


def _spec(lengths: np.ndarray) -> ScheduleSpec:
    return ScheduleSpec(lengths_tokens=lengths, seq_len=SEQ_LEN, step_packs=STEP_PACKS, seed=1, epochs=1)


def _resolved(root: str) -> Resolved:
    sections = {
        "name": "bench",
        "target": {"model": "bench", "layers": list(range(1, NUM_LAYERS))},
        "data": {"path": root, "seq_len": SEQ_LEN, "step_packs": STEP_PACKS, "validation_frac": 0},
        "nodes": {"shared": {"count": 1, "gpus": 0}},
        "engines": {"count": {"start": 1, "max": NUM_ENGINES}},
        "trainers": {"ranks": {"start": NUM_RANKS, "max": NUM_RANKS}},
        "store": {"segment_gib": SEGMENT_GIB},
        "run": {"seed": 1, "epochs": 1},
    }
    facts = TargetFacts(num_layers=NUM_LAYERS, hidden_size=HIDDEN_SIZE, vocab_size=1000)
    return resolve(Topology.model_validate(sections), facts)
