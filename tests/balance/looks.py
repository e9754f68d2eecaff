"""A run as a controller would see it, made look by look."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from dspark_train.balance.decide import decide
from dspark_train.balance.decision import Decision, State
from dspark_train.balance.layout import Layout
from dspark_train.balance.rule import Rule, Settings
from dspark_train.balance.seen import EngineSeen, Observation, RankSeen, Split
from dspark_train.schedule.unit import rank_packs
from dspark_train.topology.schema import Balance

EIGHT_NODES = Layout(1, 1, tuple(8 - ranks for ranks in range(1, 8)), 60)
"""Eight nodes of one GPU, for engines and ranks alike; a step of 60 packs."""


def settings(layout: Layout = EIGHT_NODES, **rule: Any) -> Settings:
    return Settings(replace(Rule.of(Balance()), **rule), layout)


@dataclass
class Run:
    """Engines and ranks with rates of their own; the slower side holds the other up."""

    split: Split
    engine: float = 10.0
    rank: float = 10.0 / 3
    step_packs: int = 60
    engine_factors: dict[str, float] = field(default_factory=dict)
    at_s: float = 0.0
    busy: dict[str, tuple[float, float]] = field(default_factory=dict)
    state: State = field(default_factory=State)

    def look(self, after_s: float = 30.0, **changes: Any) -> Observation:
        """The counters after some time more."""
        self.at_s += after_s
        engines = {f"engine-{number + 1}": self.engine for number in range(self.split.num_engines)}
        engines = {name: rate * self.engine_factors.get(name, 1.0) for name, rate in engines.items()}
        num_ranks = self.split.num_ranks
        makes = sum(engines.values())
        trains = self.step_packs * self.rank / -(-self.step_packs // num_ranks)
        flows = min(makes, trains)
        for name, rate in engines.items():
            self._work(name, rate, after_s * flows / makes)
        for place in range(num_ranks):
            share = len(rank_packs(self.step_packs, num_ranks, place)) / self.step_packs
            self._work(f"rank-{place}", trains * share, after_s * flows / trains)
        seen = Observation(
            at_s=self.at_s,
            split=self.split,
            engines=tuple(EngineSeen(name, *self.busy[name]) for name in engines),
            ranks=tuple(RankSeen(f"rank-{place}", *self.busy[f"rank-{place}"]) for place in range(num_ranks)),
            remaining_s=10_000.0,
        )
        return replace(seen, **changes)

    def _work(self, name: str, rate: float, busy_s: float) -> None:
        tokens, before_s = self.busy.get(name, (0.0, 0.0))
        self.busy[name] = tokens + rate * busy_s, before_s + busy_s

    def decide(self, rule: Settings, num: int = 1, **changes: Any) -> Decision:
        """The last of so many decisions, or the first move."""
        for _ in range(num):
            self.state, decision = decide(rule, self.state, self.look(**changes))
            if decision.reason.is_move:
                break
        return decision
