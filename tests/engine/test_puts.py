"""Puts of an engine: what is tried again, for how long, and what a lost segment costs the others."""

import subprocess
import sys
import time
from signal import SIGKILL, SIGSTOP

import numpy as np
import pytest

from dspark_train.engine import puts as puts_module
from dspark_train.engine.marker import Marker, kind_of
from dspark_train.engine.puts import SHUN_S, Puts, limit_transfers
from dspark_train.errors import StoreError, StoreFull
from dspark_train.store.on_mooncake import join
from dspark_train.store.statuses import SegmentLost

OWNER = """
import sys, time
from dspark_train.store.on_mooncake import MooncakeClient
client = MooncakeClient(
    local_hostname="127.0.0.1", master=sys.argv[1], segment_bytes=64 * 2**20, buffer_bytes=16 * 2**20, timeout_s=20
)
print(client.segment, flush=True)
time.sleep(600)
"""


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


class Native:
    """Segments that answer with a status each; "" is what the master chooses. Records (key, segment)."""

    def __init__(self, **status: int) -> None:
        self.status = status
        self.puts: list[tuple[str, str]] = []

    def put_from(self, key, address, num_bytes, config) -> int:
        self.puts.append((key, config.preferred_segment))
        return self.status.get(config.preferred_segment or "any", 0)

    def put(self, key, data, config) -> int:
        return self.put_from(key, 0, len(data), config)


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(puts_module.time, "sleep", lambda pause_s: setattr(clock, "now_s", clock.now_s + pause_s))
    return clock


def sample(puts: Puts, key: str, segment: str) -> None:
    puts.sample(key, segment, 0, 64)


MARKER = Marker("unreachable", "r")


@pytest.mark.parametrize(
    ("status", "error", "least_s", "most_s"),
    [
        (-200, StoreFull, 13, 15),
        (-900, StoreError, 13, 15),
        (-901, StoreError, 13, 15),
        (-1010, StoreError, 13, 15),
        (-800, SegmentLost, 1, 2),
        (-600, StoreError, 0, 0),
    ],
)
def test_what_may_pass_is_tried_again_and_a_transfer_for_a_moment_only(clock, status, error, least_s, most_s):
    began_s = clock.now_s
    with pytest.raises(error):
        sample(Puts(Native(s=status), clock), "k", "s")
    assert least_s <= clock.now_s - began_s <= most_s


def test_a_lost_segment_fails_at_once_for_a_while_and_costs_the_others_nothing(clock):
    native = Native(dead=-800)
    puts = Puts(native, clock)
    sample(puts, "a", "good")
    with pytest.raises(SegmentLost, match=r"put b: segment dead: transfer failed \(-800\); is its owner alive"):
        sample(puts, "b", "dead")
    began_s, num_puts = clock.now_s, len(native.puts)
    with pytest.raises(SegmentLost, match="put c: segment dead took nothing; tried again in 30 s"):
        sample(puts, "c", "dead")
    assert (clock.now_s, len(native.puts)) == (began_s, num_puts)
    sample(puts, "d", "good")
    puts.marker("c", "dead", MARKER)
    assert native.puts[-1] == ("c:error", "good")
    native.status.clear()
    clock.now_s += SHUN_S
    sample(puts, "e", "dead")
    assert native.puts[-1] == ("e", "dead")


def test_a_marker_for_a_good_segment_goes_there(clock):
    native = Native()
    Puts(native, clock).marker("k", "s", MARKER)
    assert native.puts == [("k:error", "s")]


def test_where_no_other_segment_is_known_the_master_chooses_and_is_not_asked_again_when_that_fails(clock):
    native = Native(dead=-800, any=-800)
    puts = Puts(native, clock)
    with pytest.raises(SegmentLost):
        sample(puts, "a", "dead")
    with pytest.raises(SegmentLost, match="the segment that the master chose"):
        puts.marker("a", "dead", MARKER)
    num_puts = len(native.puts)
    with pytest.raises(SegmentLost):
        puts.marker("b", "dead", MARKER)
    assert len(native.puts) == num_puts


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (StoreFull("f"), "full"),
        (SegmentLost("l"), "unreachable"),
        (StoreError("e"), "fault"),
        (ValueError("Non-finite producer tensor"), "wrong"),
    ],
)
def test_the_kind_of_marker_tells_whose_fault_it_was(error, kind):
    assert kind_of(error) == kind
    assert Marker.decode(Marker(kind, "text").encode()) == Marker(kind, "text")


@pytest.mark.real
@pytest.mark.parametrize(("number", "most_s"), [(SIGKILL, 4.0), (SIGSTOP, 9.0)])
def test_the_owner_of_a_real_segment_dies_or_stands_still(mooncake_master, monkeypatch, number, most_s):
    for name in puts_module.TRANSFER_TIMEOUTS:
        monkeypatch.delenv(name, raising=False)
    limit_transfers()
    native = join(local_hostname="127.0.0.1", master=mooncake_master.rpc, buffer_bytes=16 * 2**20)
    puts, data = Puts(native), np.ones(700_000, dtype=np.uint8)
    assert native.register_buffer(data.ctypes.data, data.nbytes) == 0

    def put(key: str, segment: str) -> float:
        began_s = time.monotonic()
        puts.sample(f"puts-{number}/{key}", segment, data.ctypes.data, data.nbytes)
        return time.monotonic() - began_s

    argv = [sys.executable, "-c", OWNER, mooncake_master.rpc]
    with (
        subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as lost,
        subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as good,
    ):
        segment, other = lost.stdout.readline().strip(), good.stdout.readline().strip()
        put("a", other)
        put("b", segment)
        lost.send_signal(number)
        try:
            began_s = time.monotonic()
            with pytest.raises(SegmentLost):
                put("c", segment)
            first_s = time.monotonic() - began_s
            with pytest.raises(SegmentLost):
                put("d", segment)
            second_s = time.monotonic() - began_s - first_s
            puts.marker(f"puts-{number}/c", segment, MARKER)
            marker_s = time.monotonic() - began_s - first_s - second_s
            other_s = put("e", other)
        finally:
            for owner in (lost, good):
                owner.kill()
    print(f"{number.name}: {first_s:.2f} s, then {second_s:.4f} s; marker {marker_s:.4f} s; others {other_s:.4f} s")
    native.close()
    assert first_s < most_s
    assert max(second_s, marker_s, other_s) < 1.0
