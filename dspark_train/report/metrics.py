"""The run as Prometheus reads it: names and units by its conventions. State and totals in, text out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import get_args

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from dspark_train.report.state import EngineLoad, MemberPhase, RunPhase, RunState

CONTENT_TYPE = CONTENT_TYPE_LATEST
PARTS = ("inference", "trainers", "link")
Gauge = tuple[str, str, float | None]
Values = Mapping[tuple[str, ...], float | None]
OfEngine = tuple[str, str, Callable[[EngineLoad], float | None]]
ENGINE_GAUGES: tuple[OfEngine, ...] = (
    ("dspark_engine_leased_samples", "Samples that the engine holds leases of.", lambda load: load.leased),
    ("dspark_engine_running_requests", "Requests in vLLM's batch, when it was looked at.", lambda load: load.running),
    ("dspark_engine_waiting_requests", "Requests that wait in vLLM.", lambda load: load.waiting),
    ("dspark_engine_kv_cache_used_ratio", "Share of vLLM's KV cache in use.", lambda load: load.kv_cache_frac),
)
ENGINE_COUNTERS: tuple[OfEngine, ...] = (
    ("dspark_engine_lost_samples", "Samples lost since the engine's start.", lambda load: load.lost),
    ("dspark_engine_finished_requests", "Requests that vLLM has ended.", lambda load: load.finished),
    ("dspark_engine_prompt_tokens", "Prompt tokens that vLLM has taken.", lambda load: load.prompt_tokens),
)


@dataclass
class Totals:
    """What only grows, from the run's files. num_events: by kind; times in seconds."""

    num_events: Counter[str] = field(default_factory=Counter)
    trained_tokens: float = 0.0
    step_s: float = 0.0
    wait_s: float = 0.0
    paused_s: float = 0.0


def exposition(state: RunState, totals: Totals, now_s: float) -> bytes:
    """The answer of `/metrics`. now_s: Unix seconds. Figures that are not known yet are left out."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Run(state, totals, now_s))
    return generate_latest(registry)


class _Run(Collector):
    def __init__(self, state: RunState, totals: Totals, now_s: float) -> None:
        self._state, self._totals, self._now_s = state, totals, now_s

    def collect(self) -> Iterator[Metric]:
        yield from _course(self._state, self._now_s)
        yield from _pools(self._state)
        yield from _engines(self._state)
        yield from _flow(self._state)
        yield from _totals(self._totals)


def _course(state: RunState, now_s: float) -> Iterator[Metric]:
    yield _labelled("dspark_run_info", "The run's name and the balance's mode.", {(state.run, state.mode): 1.0}, _INFO)
    states: Values = {(str(phase),): float(state.state == phase) for phase in get_args(RunPhase)}
    yield _labelled("dspark_run_state", "1 for the state that the run is in.", states, ("state",))
    parts: Values = {(part,): float(state.bottleneck == part) for part in PARTS}
    yield _labelled("dspark_bottleneck", "1 for the part that holds the run up.", parts, ("part",))
    checkpoint = state.checkpoint
    yield from _gauges(
        ("dspark_step", "Optimizer steps committed.", state.step),
        ("dspark_planned_steps", "Optimizer steps that the run has in all.", state.total_steps),
        ("dspark_epoch", "Epoch of the step in hand, from 0.", state.epoch),
        ("dspark_loss", "Training loss of the last step.", state.loss),
        ("dspark_accept_length_tokens", "Acceptance length on the last step.", state.accept_len),
        ("dspark_validation_loss", "Loss of the last validation round.", state.validation_loss),
        (
            "dspark_validation_accept_length_tokens",
            "Acceptance length of the last validation round.",
            state.validation_accept_len,
        ),
        ("dspark_generation", "Generation of the trainer group.", state.generation),
        ("dspark_faults", "Faults that the run lives with now.", len(state.faults)),
        (
            "dspark_checkpoint_step",
            "Step of the newest durable checkpoint.",
            None if checkpoint is None else checkpoint.step,
        ),
        (
            "dspark_checkpoint_timestamp_seconds",
            "When the newest durable checkpoint was written, Unix time.",
            None if checkpoint is None else now_s - checkpoint.age_s,
        ),
        (
            "dspark_scaling_in_progress",
            "1 while the pools' sizes are being changed.",
            float((state.transaction or {}).get("state") == "running"),
        ),
    )


def _pools(state: RunState) -> Iterator[Metric]:
    pools = state.pools.items()
    for name, text, values in (
        ("dspark_pool_desired_members", "Members that the pool shall have.", {p: v.desired for p, v in pools}),
        ("dspark_pool_ready_members", "Members that work.", {p: v.ready for p, v in pools}),
        ("dspark_pool_pending_members", "Members that are not there yet.", {p: v.pending for p, v in pools}),
        ("dspark_pool_draining_members", "Members that finish and go.", {p: v.draining for p, v in pools}),
        ("dspark_pool_tokens_per_second", "Tokens done by the pool.", {p: v.tokens_per_s for p, v in pools}),
        (
            "dspark_pool_service_tokens_per_second",
            "Tokens that the pool could do if it never waited.",
            {p: v.service_tokens_per_s for p, v in pools},
        ),
        ("dspark_pool_blocked_ratio", "Share of its time without work.", {p: v.blocked_frac for p, v in pools}),
    ):
        yield _labelled(name, text, {(pool,): value for pool, value in values.items()}, ("pool",))
    members = [(pool, member) for pool, one in pools for member in one.members]
    yield _labelled(
        "dspark_member_tokens_per_second",
        "Tokens done by an engine or a rank.",
        {(pool, member.name): member.tokens_per_s for pool, member in members},
        ("pool", "member"),
    )
    yield _labelled(
        "dspark_member_state",
        "1 for the state that an engine or a rank is in.",
        {(p, m.name, phase): float(m.state == phase) for p, m in members for phase in get_args(MemberPhase)},
        ("pool", "member", "state"),
    )


def _engines(state: RunState) -> Iterator[Metric]:
    loads = {member.name: member.load for member in state.pools["inference"].members if member.load is not None}
    for name, text, read in ENGINE_GAUGES:
        yield _labelled(name, text, {(member,): read(load) for member, load in loads.items()}, ("member",))
    for name, text, read in ENGINE_COUNTERS:
        values: Values = {(member,): read(load) for member, load in loads.items()}
        yield _labelled(name, text, values, ("member",), CounterMetricFamily)


def _flow(state: RunState) -> Iterator[Metric]:
    store, ledger = state.store, state.ledger
    yield from _gauges(
        ("dspark_store_used_bytes", "Bytes in the store.", store.used_bytes),
        ("dspark_store_capacity_bytes", "Bytes that the store holds.", store.capacity_bytes),
        ("dspark_store_samples", "Samples in the store.", store.num_samples),
    )
    yield _counter("dspark_store_evicted_samples", "Samples lost unread; must stay 0.", store.num_evicted)
    now = {"planned": ledger.planned, "leased": ledger.leased, "ready": ledger.ready, "taken": ledger.taken}
    yield _labelled("dspark_ledger_samples", "Samples by state.", {(k,): float(v) for k, v in now.items()}, ("state",))
    yield _counter("dspark_ledger_trained_samples", "Samples trained.", ledger.trained)
    yield _counter("dspark_ledger_failed_samples", "Samples given up.", ledger.failed)
    yield _counter("dspark_ledger_regenerated_samples", "Samples made again.", ledger.regenerated)


def _totals(totals: Totals) -> Iterator[Metric]:
    yield _counter("dspark_trained_tokens", "Tokens trained, over committed steps.", totals.trained_tokens)
    yield _counter("dspark_step_seconds", "Time spent in steps, waiting included.", totals.step_s)
    yield _counter("dspark_step_wait_seconds", "Time that steps waited for samples.", totals.wait_s)
    yield _counter("dspark_pause_seconds", "Time that training stood still for changes of the group.", totals.paused_s)
    events = CounterMetricFamily("dspark_events", "Events of the journal.", labels=("kind",))
    for kind, num in sorted(totals.num_events.items()):
        events.add_metric((kind,), num)
    yield events


_INFO = ("run", "mode")


def _gauges(*gauges: Gauge) -> Iterator[Metric]:
    for name, text, value in gauges:
        yield _labelled(name, text, {(): value}, ())


def _labelled(
    name: str,
    text: str,
    values: Values,
    labels: tuple[str, ...],
    family_of: type[GaugeMetricFamily] | type[CounterMetricFamily] = GaugeMetricFamily,
) -> Metric:
    family = family_of(name, text, labels=labels)
    for marks, value in values.items():
        if value is not None:
            family.add_metric(marks, value)
    return family


def _counter(name: str, text: str, value: float) -> CounterMetricFamily:
    return CounterMetricFamily(name, text, value=value)
