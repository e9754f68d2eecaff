"""How samples get from engines to ranks in one tick. Pure. `Fluid` here, the real ledger in `ledgered.py`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from dspark_train.simulate.weather import Floats


@dataclass(frozen=True, slots=True)
class Done:
    """What one tick gave. Samples and seconds; of each engine, and of the trainer group as one."""

    engine_samples: Floats
    engine_busy_s: Floats
    trained: float
    busy_s: float
    wait_s: float
    fetch_s: float


class Flow(Protocol):
    """A way for samples."""

    @property
    def fill_frac(self) -> float:
        """How full the store is."""
        ...

    def advance(
        self, dt_s: float, engines: Floats, up_s: Floats, num_ranks: int, group: float, train_s: float, link: float
    ) -> Done:
        """One tick.

        engines: samples a second of each; up_s: how long each is up in it; group: samples a second of ``num_ranks``
        ranks; train_s: how long they are not paused; link: samples a second.
        """
        ...


class Fluid:
    """Rates and one buffer: the mean of engines that are switched off when it is full and on when it has room."""

    def __init__(self, capacity: float) -> None:
        self._capacity = capacity
        self._held = 0.0

    @property
    def fill_frac(self) -> float:
        return self._held / self._capacity

    def advance(
        self, dt_s: float, engines: Floats, up_s: Floats, num_ranks: int, group: float, train_s: float, link: float
    ) -> Done:
        most = engines * up_s
        can_make, can_train, can_carry = float(most.sum()), group * train_s, link * train_s
        trained = min(can_train, can_carry, self._held + can_make)
        made = min(can_make, self._capacity - self._held + trained)
        self._held += made - trained
        share = made / can_make if can_make > 0 else 0.0
        busy_s = trained / group if group > 0 else 0.0
        wait_s = max(0.0, train_s - busy_s)
        fetch_s = wait_s if can_carry <= min(can_train, self._held + trained) else 0.0
        return Done(most * share, up_s * share, trained, busy_s, wait_s, fetch_s)
