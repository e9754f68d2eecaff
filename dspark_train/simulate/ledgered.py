"""A flow through the real schedule and ledger: every sample is leased, put, taken and committed. Pure.

For small scenarios: a sample costs about 50 us, so an hour of 20 samples a second takes seconds. Lengths are drawn from
the seed; a sample of mean length is worth one sample of the scenario, longer ones more.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from dspark_train.schedule.ledger import Ledger
from dspark_train.schedule.messages import Lease, Member, Ready
from dspark_train.schedule.rule import LedgerRule
from dspark_train.schedule.steps import Schedule, ScheduleSpec
from dspark_train.simulate.flow import Done
from dspark_train.simulate.scenario import Scenario
from dspark_train.simulate.weather import Floats
from dspark_train.topology.resolve import Resolved

NUM_SAMPLES = 20_000
SLICE_S = 1.0
"""Engines and ranks take turns so often within a tick."""


class Ledgered:
    """See the module."""

    def __init__(self, scenario: Scenario, resolved: Resolved, num_ranks: int, seed: int) -> None:
        data = resolved.topology.data
        dice = np.random.default_rng([7, seed])
        lengths = dice.integers(max(1, data.seq_len // 4), data.seq_len // 2 + 1, NUM_SAMPLES)
        self._mean_tokens = float(lengths.mean())
        self._capacity = scenario.buffer_samples * self._mean_tokens
        self._max_in_flight = resolved.topology.engines.max_in_flight
        spec = ScheduleSpec(lengths, data.seq_len, data.step_packs, seed, max_steps=10**9)
        rule = LedgerRule("simulated/1", lease_s=1e9, max_attempts=4, max_failed_frac=1.0, high_mark_frac=1.0)
        self._ledger = Ledger(Schedule(spec), lambda num_tokens: num_tokens, rule)
        self._num_ranks = self._generation = 0
        self._set_group(num_ranks)
        self._ledger.run()
        self._held: dict[int, deque[tuple[Lease, float]]] = {}
        self._now_s = 0.0
        self._step_left: float | None = None
        """Tokens of the step in training that are yet to be trained; None while none is."""
        self._step_tokens = self._step_busy_s = 0.0

    @property
    def fill_frac(self) -> float:
        return min(1.0, self._ledger.view().resident_bytes / self._capacity)

    def advance(
        self, dt_s: float, engines: Floats, up_s: Floats, num_ranks: int, group: float, train_s: float, link: float
    ) -> Done:
        if num_ranks and num_ranks != self._num_ranks:
            self._set_group(num_ranks)
        for number in [number for number in self._held if up_s[number] <= 0]:
            self._ledger.drop_engine(f"engine-{number + 1}", self._now_s)
            del self._held[number]
        made, busy_s = np.zeros_like(engines), np.zeros_like(engines)
        trained = train_busy_s = wait_s = 0.0
        num_slices = max(1, round(dt_s / SLICE_S))
        for _ in range(num_slices):
            self._now_s += dt_s / num_slices
            for number in np.flatnonzero(up_s > 0).tolist():
                tokens = float(engines[number] * up_s[number]) / num_slices * self._mean_tokens
                left = self._extract(number, tokens)
                made[number] += (tokens - left) / self._mean_tokens
                busy_s[number] += (1 - left / tokens if tokens else 0.0) * up_s[number] / num_slices
            speed = min(group, link) * self._mean_tokens
            done, done_busy_s, idle_s = self._train(speed, train_s / num_slices)
            trained += done / self._mean_tokens
            train_busy_s += done_busy_s
            wait_s += idle_s
        return Done(made, busy_s, trained, train_busy_s, wait_s, 0.0)

    def _set_group(self, num_ranks: int) -> None:
        """Ranks with equal segments, which together hold what the scenario says, and a step at the least."""
        self._generation += 1
        self._num_ranks = num_ranks
        members = [
            Member(f"rank-{rank}", f"segment-{rank}", int(self._capacity / num_ranks)) for rank in range(num_ranks)
        ]
        self._ledger.set_group(members, self._generation)
        self._step_left, self._step_busy_s = None, 0.0

    def _extract(self, number: int, tokens: float) -> float:
        """An engine works off its leases, and takes new ones. Returns the tokens for which it had none."""
        name = f"engine-{number + 1}"
        held = self._held.setdefault(number, deque())
        while tokens > 0:
            if not held:
                leases = self._ledger.lease(name, self._max_in_flight, 10**9, self._now_s)
                if not leases:
                    return tokens
                held.extend((lease, float(lease.num_tokens)) for lease in leases)
            lease, left = held.popleft()
            if left > tokens:
                held.appendleft((lease, left - tokens))
                return 0.0
            tokens -= left
            self._ledger.report(name, [Ready(lease.key, lease.num_tokens)], [], self._now_s)
        return 0.0

    def _train(self, tokens_per_s: float, left_s: float) -> tuple[float, float, float]:
        """The group takes, trains and commits.

        Returns tokens and seconds of the steps that ended, as a rank's counters tell them, and the seconds in which
        there was no step to do.
        """
        trained = busy_s = 0.0
        while left_s > 1e-9 and tokens_per_s > 0:
            if self._step_left is None and not self._begin_step():
                return trained, busy_s, left_s
            assert self._step_left is not None
            part = min(self._step_left, tokens_per_s * left_s)
            self._step_left -= part
            left_s -= part / tokens_per_s
            self._step_busy_s += part / tokens_per_s
            if self._step_left <= 1e-6:
                trained, busy_s = trained + self._step_tokens, busy_s + self._step_busy_s
                self._step_left, self._step_busy_s = None, 0.0
                assert self._ledger.commit(self._ledger.unit, self._generation)
        return trained, busy_s, 0.0

    def _begin_step(self) -> bool:
        """Take the next unit; whether it is there as a whole."""
        unit = self._ledger.unit
        for rank in range(self._num_ranks):
            self._ledger.take(f"rank-{rank}", unit)
        whole = self._ledger.committable(unit, self._generation)
        if whole is None:
            return False
        self._step_tokens = self._step_left = float(sum(p.num_tokens for pack in whole.packs for p in pack.pieces))
        return True
