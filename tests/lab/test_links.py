"""Links that are slow and lose packets: the run goes on over them, slower, and nobody is taken for dead."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

from tests.faults.progress import Progress
from tests.lab.line import LabLine, differences
from tests.lab.network import cannot_impair
from tests.lab.table import Row, show

pytestmark = [
    pytest.mark.lab,
    pytest.mark.lab_long,
    pytest.mark.real,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(bool(cannot_impair()), reason=cannot_impair()),
]

SAME_BYTES = 1e-6
WITHIN_S = 700.0
RUN = ("run.max_steps=16", "validation.every_steps=16")
GOOD, BAD = (0.0, 0.0), (20.0, 1.0)
"""Delay each way in ms, loss each way in percent."""
OneHost = Callable[..., list[dict[str, Any]]]


def over(line: LabLine, delay_ms: float, loss_percent: float) -> Row:
    """A run from its launch to its end, with a rank's host and that of the engine which answers on such links."""
    what = f"{delay_ms:g} ms each way, {loss_percent:g} % lost"
    name = f"links-{delay_ms:g}-{loss_percent:g}"
    row = Row("hosts of a rank and an engine", what)
    for host in line.hosts[1:3]:
        host.impair(delay_ms, loss_percent)
    try:
        began_s = time.time()
        line.begin(name, *RUN)
        with closing(Progress(line.root / "runs" / name)) as progress:
            state = line.ended(name, WITHIN_S)
        row.step_s = progress.usual_s()
        row.stood_still_s = progress.longest_gap_s(began_s, time.time()) - row.step_s
    finally:
        for host in line.hosts:
            host.impair()
    show("links", [row])
    assert state["state"] == "done", line.tail(name)
    assert [event for event in line.events(name) if event["kind"].endswith((".dead", ".failed"))] == []
    assert state["store"]["num_evicted"] == 0
    assert state["ledger"]["failed"] == 0
    return row


def test_a_run_goes_on_over_links_that_are_slow_and_lose_packets(line: LabLine, one_host: OneHost) -> None:
    reference = one_host(*RUN)
    rows = [over(line, *GOOD), over(line, *BAD)]
    show("links", rows)
    for delay_ms, loss_percent in (GOOD, BAD):
        steps = line.steps(f"links-{delay_ms:g}-{loss_percent:g}")
        assert differences(steps, reference, SAME_BYTES) == []
    line.wait_empty()
