"""Members on a virtual clock: what is up, what starts, what pauses, and the counters that the balance sees. Pure."""

from __future__ import annotations

from math import exp, inf

import numpy as np

from dspark_train.balance.layout import Layout
from dspark_train.balance.model import Model, Rates
from dspark_train.balance.seen import Costs, EngineSeen, Observation, RankSeen, Split
from dspark_train.schedule.unit import rank_packs
from dspark_train.simulate.flow import Done, Flow
from dspark_train.simulate.scenario import Scenario
from dspark_train.simulate.weather import Floats, Weather

LOOK_BACK_S = 30.0
"""Over which the share of time that engines work is averaged, as Ray Serve does with what is ongoing."""


class World:
    """One run. `order` changes what is wanted; `tick` lets time pass."""

    def __init__(self, scenario: Scenario, layout: Layout, weather: Weather, flow: Flow, start: Split) -> None:
        self.scenario, self.layout, self.weather, self.flow = scenario, layout, weather, flow
        self.tick_index = 0
        self.wanted = start
        self.trained = 0.0
        """Samples trained so far."""
        self.num_ranks = start.num_ranks
        """Ranks that train."""
        self.busy_frac = 1.0
        """Share of their time that engines lately worked."""
        self._paused_until_s = 0.0
        self._join_at_s = inf
        self._was_paused = False
        most = max(layout.most_engines)
        self._slow = np.array([scenario.slow.get(number, 1.0) for number in range(1, most + 1)])
        self._up_at_s = np.where(np.arange(most) < start.num_engines, 0.0, inf)
        self._tokens, self._busy_s = np.zeros(most), np.zeros(most)
        self._rank_tokens = np.zeros(layout.max_ranks)
        self._rank_busy_s = self._rank_wait_s = self._rank_fetch_s = 0.0
        self._shares: dict[int, Floats] = {}
        self._engine_names = [f"engine-{number}" for number in range(1, most + 1)]

    @property
    def at_s(self) -> float:
        """The virtual clock."""
        return self.tick_index * self.scenario.tick_s

    @property
    def is_over(self) -> bool:
        """Whether the run has ended."""
        return self.tick_index >= self.scenario.num_ticks

    @property
    def remaining_s(self) -> float:
        """Time left."""
        return (self.scenario.num_ticks - self.tick_index) * self.scenario.tick_s

    @property
    def num_pending(self) -> int:
        """Members that start or are to be replaced."""
        engines = int(np.count_nonzero(self._up_at_s[: self.wanted.num_engines] > self.at_s))
        return engines + abs(self.wanted.num_ranks - self.num_ranks)

    @property
    def fill_frac(self) -> float:
        """How full the store is."""
        return self.flow.fill_frac

    def model(self) -> Model:
        """The true rates of this moment, noise left out."""
        scenario, weather, tick = self.scenario, self.weather, min(self.tick_index, self.scenario.num_ticks - 1)
        rates = scenario.engine.samples_per_s * float(weather.engines[tick]) * self._slow
        return Model(
            Rates(
                tuple(rates.tolist()),
                scenario.rank.samples_per_s * float(weather.ranks[tick]),
                self.layout.step_packs,
                self._link(tick),
            )
        )

    # -- acting ----------------------------------------------------------------------------------------------------

    def order(self, to: Split) -> None:
        """Change the pools: what goes, goes at once; what comes, comes after its start; givers give first."""
        assert self.layout.is_legal(to), f"{to} is not legal"
        now_s, engine, rank = self.at_s, self.scenario.engine, self.scenario.rank
        both = Split(max(to.num_engines, self.wanted.num_engines), max(to.num_ranks, self.num_ranks))
        freed_s = 0.0
        if to.num_ranks < self.num_ranks:
            self._pause()
            self.num_ranks = to.num_ranks
            freed_s = 0.0 if self.layout.is_legal(both) else rank.pause_s
        self._join_at_s = now_s + rank.start_s if to.num_ranks > self.num_ranks else inf
        numbers = np.arange(len(self._up_at_s))
        starts = (numbers < to.num_engines) & np.isinf(self._up_at_s)
        self._up_at_s[starts] = now_s + freed_s + engine.start_s
        self._up_at_s[numbers >= to.num_engines] = inf
        self._tokens[np.isinf(self._up_at_s)] = self._busy_s[np.isinf(self._up_at_s)] = 0.0
        self.wanted = to

    def _pause(self) -> None:
        self._paused_until_s = max(self._paused_until_s, self.at_s) + self.scenario.rank.pause_s

    def _die(self, pool: str, number: int) -> None:
        """A member dies; another is started in its place."""
        if pool == "inference":
            if number <= self.wanted.num_engines and self._up_at_s[number - 1] <= self.at_s:
                self._up_at_s[number - 1] = self.at_s + self.scenario.engine.start_s
                self._tokens[number - 1] = self._busy_s[number - 1] = 0.0
        elif number <= self.num_ranks:
            self._pause()
            self._join_at_s = self.at_s + self.scenario.rank.start_s
            self.num_ranks -= 1

    # -- time ------------------------------------------------------------------------------------------------------

    def tick(self) -> float:
        """Let one tick pass. Returns the samples trained in it."""
        tick, dt_s, now_s = self.tick_index, self.scenario.tick_s, self.at_s
        for pool, number in self.weather.deaths.get(tick, ()):
            self._die(pool, number)
        if self._join_at_s <= now_s:
            self._pause()
            self.num_ranks, self._join_at_s = self.wanted.num_ranks, inf
        up_s = np.clip(now_s + dt_s - self._up_at_s, 0.0, dt_s)
        train_s = min(dt_s, max(0.0, now_s + dt_s - self._paused_until_s))
        self._was_paused |= train_s < dt_s
        group = self._group_rate(tick)
        done = self.flow.advance(
            dt_s, self._engine_rates(tick), up_s, self.num_ranks, group, train_s if group else 0.0, self._link(tick)
        )
        self._count(done)
        kept = exp(-dt_s / LOOK_BACK_S)
        busy_frac = float(done.engine_busy_s.sum() / up_s.sum()) if up_s.any() else 1.0
        self.busy_frac = self.busy_frac * kept + busy_frac * (1 - kept)
        self.tick_index += 1
        return done.trained

    def _engine_rates(self, tick: int) -> Floats:
        rates: Floats = self.scenario.engine.samples_per_s * self.weather.engines[tick] * self._slow
        return rates if self.weather.engine_noise is None else rates * self.weather.engine_noise[tick]

    def _group_rate(self, tick: int) -> float:
        """Samples a second of the ranks that train."""
        if self.num_ranks < 1:
            return 0.0
        packs, noise = self.layout.step_packs, self.weather.group_noise
        rate = self.scenario.rank.samples_per_s * float(self.weather.ranks[tick]) * packs
        return rate / -(-packs // self.num_ranks) * (1.0 if noise is None else float(noise[tick, self.num_ranks - 1]))

    def _link(self, tick: int) -> float:
        link = self.scenario.link_samples_per_s
        return inf if link is None else link * float(self.weather.link[tick])

    def _count(self, done: Done) -> None:
        self.trained += done.trained
        self._tokens += done.engine_samples
        self._busy_s += done.engine_busy_s
        self._rank_tokens[: self.num_ranks] += done.trained * self._share(self.num_ranks)
        self._rank_busy_s += done.busy_s
        self._rank_wait_s += done.wait_s
        self._rank_fetch_s += done.fetch_s

    def _share(self, num_ranks: int) -> Floats:
        if num_ranks not in self._shares:
            packs = self.layout.step_packs
            sizes = [len(rank_packs(packs, num_ranks, rank)) / packs for rank in range(num_ranks)]
            self._shares[num_ranks] = np.array(sizes)
        return self._shares[num_ranks]

    # -- looking ---------------------------------------------------------------------------------------------------

    def observation(self) -> Observation:
        """What a controller would tell the balance now. Samples stand for tokens."""
        now_s, up = self.at_s, self._up_at_s[: self.wanted.num_engines] <= self.at_s
        numbers, names = np.flatnonzero(up).tolist(), self._engine_names
        tokens, busy_s, rank_tokens = self._tokens.tolist(), self._busy_s.tolist(), self._rank_tokens.tolist()
        engines = tuple([EngineSeen(names[n], tokens[n], busy_s[n]) for n in numbers])
        clocks = (self._rank_busy_s, self._rank_wait_s, self._rank_fetch_s)
        ranks = tuple(RankSeen(f"rank-{n}", rank_tokens[n], *clocks) for n in range(self.num_ranks))
        was_paused, self._was_paused = self._was_paused, False
        engine, rank = self.scenario.engine, self.scenario.rank
        return Observation(
            at_s=now_s,
            split=self.wanted,
            engines=engines,
            ranks=ranks,
            num_pending=self.num_pending,
            is_excluded=was_paused,
            remaining_s=self.remaining_s,
            costs=Costs(engine.start_s, rank.start_s, rank.pause_s),
        )
