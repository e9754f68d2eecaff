"""What a rank waits for: samples that are to be made, or their way to it."""

import time
from typing import Any

import pytest

from dspark_train.schedule.unit import Unit
from dspark_train.trainer.step import UnitRunner

pytestmark = pytest.mark.torch
UNIT = Unit(3, "train", 1, 0, ())
WAIT_S = 0.2


class Slow:
    """Its packs take a while, and lie in the store since ``ago_s`` before they were asked for."""

    def __init__(self, ago_s: float | None) -> None:
        self._since_s = None if ago_s is None else time.monotonic() - ago_s

    def get(self, unit: int, pack: int) -> Any:
        time.sleep(WAIT_S)
        return (unit, pack)

    def in_store_s(self, unit: int) -> float | None:
        assert unit == UNIT.index
        return self._since_s


@pytest.mark.parametrize(
    ("ago_s", "fetch_s"),
    [(None, 0.0), (9.0, WAIT_S), (-WAIT_S / 2, WAIT_S / 2), (-WAIT_S, 0.0)],
    ids=["not all is made", "all was there", "the last came half-way", "the last came at the end"],
)
def test_a_wait_is_the_links_from_when_on_all_samples_are_in_the_store(ago_s, fetch_s):
    runner: Any = UnitRunner(None, None, None, None, 0)  # type: ignore[arg-type]
    assert runner._get(UNIT, 5, Slow(ago_s)) == (3, 5)
    assert WAIT_S <= runner._wait_s < 2 * WAIT_S
    assert runner._fetch_s == pytest.approx(fetch_s, abs=WAIT_S / 4)
    assert 0 <= runner._fetch_s <= runner._wait_s
