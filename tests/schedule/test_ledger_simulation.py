"""A run with 1000 engines that die, stall, fail and answer late, on a virtual clock."""

import heapq
import random
import time
from collections import Counter
from itertools import count

import numpy as np

from dspark_train.schedule.ledger import Ledger
from dspark_train.schedule.messages import Lost, Member, Ready
from dspark_train.schedule.rule import LedgerRule
from dspark_train.schedule.steps import Schedule, ScheduleSpec

NUM_ENGINES, NUM_RANKS, NUM_SAMPLES = 1000, 8, 6_000
LEASE_S = 10.0


class Simulation:
    """Events in the order of a virtual clock; every call to the ledger is counted."""

    def __init__(self) -> None:
        self.dice = random.Random(5)
        lengths = np.random.default_rng(0).integers(20, 400, NUM_SAMPLES)
        self.schedule = Schedule(
            ScheduleSpec(lengths_tokens=lengths, seq_len=512, step_packs=64, seed=1, epochs=2, validation_frac=0.01)
        )
        rule = LedgerRule("run/1", LEASE_S, max_attempts=10, max_failed_frac=0.0, high_mark_frac=0.9)
        self.ledger = Ledger(self.schedule, lambda num_tokens: num_tokens * 100, rule)
        self.ledger.set_group([Member(f"rank-{r}", f"s{r}", 16 * 512 * 100 * 3) for r in range(NUM_RANKS)], 1)
        self.ledger.run()
        self.agenda: list[tuple[float, int, object]] = []
        self.order = count()
        self.num_calls = 0
        self.trained: Counter[tuple[int, int]] = Counter()

    def at(self, when_s, event):
        heapq.heappush(self.agenda, (when_s, next(self.order), event))

    def engine_asks(self, now_s, name):
        leases = self.ledger.lease(name, 4, 2048, now_s)
        self.num_calls += 1
        if leases and self.dice.random() < 0.01:
            return  # hangs for ever; its leases expire
        if leases and self.dice.random() < 0.01:
            self.num_calls += 1
            assert self.ledger.drop_engine(name, now_s) == len(leases)
            self.at(now_s + 30, lambda at_s: self.engine_asks(at_s, name))
            return
        takes_s = self.dice.uniform(0.5, 2.0) if self.dice.random() < 0.98 else LEASE_S * 1.5
        self.at(now_s + (takes_s if leases else 1.0), lambda at_s: self.engine_answers(at_s, name, leases))

    def engine_answers(self, now_s, name, leases):
        lost = [Lost(lease.key, "HTTP 500") for lease in leases if self.dice.random() < 0.01]
        ready = [Ready(lease.key, lease.num_tokens * 100) for lease in leases]
        ready = [found for found in ready if found.key not in {gone.key for gone in lost}]
        self.ledger.report(name, ready, lost, now_s)
        self.num_calls += 1
        self.engine_asks(now_s, name)

    def group_trains(self, now_s):
        unit = self.ledger.unit
        if self.ledger.state != "running":
            return
        replies = [self.ledger.take(f"rank-{r}", unit) for r in range(NUM_RANKS)]
        self.num_calls += NUM_RANKS + 1
        if self.ledger.commit(unit, 1):
            assert not any(reply.failed for reply in replies)
            made = self.schedule.unit(unit)
            self.trained.update(
                (pack.epoch, p.sample) for pack in made.packs for p in pack.pieces if made.kind == "train"
            )
        self.at(now_s + 0.3, self.group_trains)

    def expire(self, now_s):
        self.ledger.expire(now_s)
        self.num_calls += 1
        self.at(now_s + 1, self.expire)

    def play(self, until_s):
        self.at(0.0, self.group_trains)
        self.at(1.0, self.expire)
        for number in range(NUM_ENGINES):
            name = f"engine-{number}"
            self.at(self.dice.uniform(0, 0.5), lambda at_s, name=name: self.engine_asks(at_s, name))
        now_s = 0.0
        while self.ledger.state == "running" and now_s < until_s:
            now_s, _, event = heapq.heappop(self.agenda)
            event(now_s)
        return now_s


def test_a_thousand_faulty_engines_train_every_sample_once_an_epoch():
    simulation = Simulation()
    began = time.process_time()
    simulation.play(until_s=3600)
    spent_s = time.process_time() - began
    view = simulation.ledger.view()
    assert view.state == "done", view
    assert (view.planned, view.leased, view.ready, view.taken, view.failed, view.resident_bytes) == (0,) * 6
    assert view.regenerated > 100
    assert set(simulation.trained.values()) == {1}
    held = {piece.sample for pack in simulation.schedule.validation_packs for piece in pack.pieces}
    assert len(simulation.trained) == 2 * (NUM_SAMPLES - len(held))
    assert simulation.num_calls / spent_s > 5_000, "calls a second, the simulation itself included"
