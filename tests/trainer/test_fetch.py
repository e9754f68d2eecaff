"""The fetcher against the real ledger: all lands in its place, bad samples come again, outages are waited out."""

import itertools
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dspark_train.data.dataset import Dataset
from dspark_train.errors import PeerTimeout, StoreError
from dspark_train.schedule.messages import TakeReply
from dspark_train.schedule.steps import Schedule, ScheduleSpec
from dspark_train.schedule.unit import rank_packs
from dspark_train.store.in_memory import InMemoryServer
from dspark_train.trainer.fetch import Fetcher, FetchPlan
from dspark_train.trainer.ring import PackRing, PackShape, Slot
from tests.trainer import recorded
from tests.trainer.recorded import HIDDEN, NUM_STORED, SEGMENT_BYTES, SEQ_LEN, Hub, HubPeers, Join, hidden_states

pytestmark = pytest.mark.torch
SHAPE = PackShape(SEQ_LEN, NUM_STORED, HIDDEN, torch.float32)
WAIT_S = 20.0


class Bench:
    """One rank's fetcher over a hub, in this process."""

    def __init__(self, data: Path, num_slots: int = 4, num_ranks: int = 1, max_units: int = 2, **peers: Any) -> None:
        self.dataset = Dataset.open(data)
        topology = recorded.topology(data, data)
        self.schedule = Schedule(ScheduleSpec.of(topology, self.dataset.lengths))
        self.hub = Hub(self.schedule)
        self.hub.call("begin", Join(num_ranks))
        self.server = InMemoryServer()
        self.client = client = self.server.client(SEGMENT_BYTES)
        self.ring = PackRing(SHAPE, num_slots)
        client.register(self.ring.address, self.ring.num_bytes)
        self.peers = HubPeers(self.hub, self.dataset, client.put, **peers)
        units = Schedule(ScheduleSpec.of(topology, self.dataset.lengths))
        plan = FetchPlan(
            member="rank-0",
            unit_at=lambda index: units.unit(index) if index < units.num_units else None,
            share=lambda num_packs: rank_packs(num_packs, num_ranks, 0),
            first_unit=0,
            max_units=max_units,
            outage_s=10.0,
            generation=1,
        )
        self.released: list[str] = []
        log = logging.getLogger("test")
        self.fetcher = Fetcher(plan, self.peers, client, self.ring, self.dataset, self.released.extend, log)

    def __enter__(self) -> "Bench":
        self.fetcher.start()
        return self

    def __exit__(self, *error: object) -> None:
        assert self.fetcher.stop(WAIT_S)

    def slot(self, unit: int, pack: int) -> Slot:
        got = self.fetcher.get(unit, pack, WAIT_S)
        assert isinstance(got, Slot), got
        return got

    def check(self, unit: int, pack: int, slot: Slot) -> None:
        """The slot holds exactly its pack: every sample in its rows, zeros elsewhere."""
        want = np.zeros((SEQ_LEN, NUM_STORED, HIDDEN), np.float32)
        want_ids = np.zeros(SEQ_LEN, np.int64)
        for index, piece in enumerate(self.schedule.unit(unit).packs[pack].pieces):
            if index not in slot.failed:
                rows = slice(piece.start_row, piece.start_row + piece.num_tokens)
                want[rows] = hidden_states(piece.sample, piece.num_tokens)
                want_ids[rows] = self.dataset.token_ids(piece.sample)[: piece.num_tokens]
        assert np.array_equal(slot.hidden.numpy(), want)
        assert np.array_equal(slot.token_ids.numpy(), want_ids)


def test_every_pack_of_every_unit_lands_whole_though_the_ring_is_smaller_than_a_unit(recorded_data):
    with Bench(recorded_data, num_slots=3) as bench:
        for index in range(bench.schedule.num_units):
            unit = bench.schedule.unit(index)
            for pack in range(len(unit.packs)):
                slot = bench.slot(index, pack)
                bench.check(index, pack, slot)
                slot.hidden.fill_(7.0)  # what is left behind must not reach a later pack
                slot.token_ids.fill_(7)
                bench.ring.release(slot)
            keys = bench.fetcher.finish(index)
            if unit.kind == "validate":
                assert keys == []
                keys, bench.released[:] = list(bench.released), []
            assert len(keys) == len(set(keys)) == sum(len(pack.pieces) for pack in unit.packs)
            assert bench.hub.call("commit", recorded.commit_of(index, unit.step))


def test_samples_that_are_spoilt_on_the_way_are_reported_and_come_again(recorded_data):
    spoilt: dict[int, str] = {}

    def spoil(sample: int, data: bytes) -> bytes | None:
        kind = ["nan", "zeros", "tokens", "short", "missing", "good"][sample % 6]
        if kind == "good" or sample in spoilt:
            return data
        spoilt[sample] = kind
        nan = np.float32("nan").tobytes()
        return {
            "nan": nan + data[4:],
            "zeros": bytes(len(data) - 640) + data[-640:] if len(data) > 1280 else nan + data[4:],
            "tokens": data[:-128] + bytes(128) if len(data) > 128 else data,
            "short": data[:64],
            "missing": None,
        }[kind]

    with Bench(recorded_data, num_slots=8, spoil=spoil) as bench:
        for index in (0, 1):
            for pack in range(len(bench.schedule.unit(index).packs)):
                slot = bench.slot(index, pack)
                assert not slot.failed
                bench.check(index, pack, slot)
                bench.ring.release(slot)
            bench.fetcher.finish(index)
            bench.hub.call("commit", recorded.commit_of(index, bench.schedule.unit(index).step))
    assert set(spoilt.values()) == {"nan", "zeros", "tokens", "short", "missing"}
    samples = [p.sample for index in (0, 1) for pack in bench.schedule.unit(index).packs for p in pack.pieces]
    # The unit after these is being read meanwhile.
    assert bench.fetcher.num_lost >= len(bench.hub.lost) >= sum(sample in spoilt for sample in samples)


def test_a_sample_that_never_comes_right_is_masked_and_the_rest_of_its_pack_kept(recorded_data):
    sample = recorded.first_sample(recorded_data)
    with Bench(recorded_data, spoil=lambda number, data: None if number == sample else data) as bench:
        slot = bench.slot(0, 0)
        assert slot.failed == {0}
        bench.check(0, 0, slot)
        bench.ring.release(slot)


def test_an_outage_of_ledger_and_store_is_waited_out_and_shown(recorded_data, monkeypatch):
    bench, faults = Bench(recorded_data), []

    def silent_twice(answer: Callable[..., Any], error: Exception) -> Callable[..., Any]:
        calls = itertools.count()

        def call(*args: Any, **kwargs: Any) -> Any:
            faults.append(bench.fetcher.fault)
            if next(calls) < 2:
                raise error
            return answer(*args, **kwargs)

        return call

    monkeypatch.setattr(bench.peers, "call", silent_twice(bench.peers.call, PeerTimeout("no answer")))
    monkeypatch.setattr(bench.client, "read", silent_twice(bench.client.read, StoreError("no answer")))
    with bench:
        for pack in range(len(bench.schedule.unit(0).packs)):
            bench.ring.release(bench.slot(0, pack))
        bench.fetcher.finish(0)
        bench.hub.call("commit", recorded.commit_of(0, 0))
        bench.check(1, 0, bench.slot(1, 0))
        assert any(fault.startswith("the ledger has not answered") for fault in faults)
        assert any(fault.startswith("the store has not answered") for fault in faults)
        assert bench.fetcher.fault == ""


def test_the_stop_of_the_ledger_reaches_the_training_thread_at_its_unit(recorded_data):
    with Bench(recorded_data) as bench:
        for pack in range(len(bench.schedule.unit(0).packs)):
            bench.ring.release(bench.slot(0, pack))
        boundary = bench.hub.call("announce", True)
        for unit in range(boundary):
            if unit:
                for pack in range(len(bench.schedule.unit(unit).packs)):
                    bench.ring.release(bench.slot(unit, pack))
            assert bench.fetcher.end_at(unit, WAIT_S) is True
            bench.fetcher.finish(unit)
            bench.hub.call("commit", recorded.commit_of(unit, bench.schedule.unit(unit).step))
        reply = bench.fetcher.get(boundary, 0, WAIT_S)
        assert isinstance(reply, TakeReply)
        assert (reply.kind, reply.now) == ("stop", True)


def test_a_rank_without_packs_is_told_that_a_unit_goes_on(recorded_data):
    with Bench(recorded_data, num_ranks=40) as bench:
        assert len(rank_packs(4, 40, 0)) == 0
        assert bench.fetcher.end_at(0, WAIT_S) is True


def test_what_ends_the_fetcher_reaches_the_training_thread(recorded_data, monkeypatch):
    bench = Bench(recorded_data)
    monkeypatch.setattr(bench.peers, "call", lambda *args, **kwargs: 1 / 0)
    with bench, pytest.raises(ZeroDivisionError):
        bench.fetcher.get(0, 0, WAIT_S)


def test_from_when_on_a_unit_is_in_the_store_is_told_apart_from_when_it_was_read(recorded_data, monkeypatch):
    bench = Bench(recorded_data)
    read, read_s = bench.client.read, 0.3

    def slowly(*args: Any, **kwargs: Any) -> Any:
        time.sleep(read_s)
        return read(*args, **kwargs)

    monkeypatch.setattr(bench.client, "read", slowly)
    with bench:
        bench.ring.release(bench.slot(0, 0))
        since_s = bench.fetcher.in_store_s(0)
        assert since_s is not None
        assert read_s <= time.monotonic() - since_s < WAIT_S
        for pack in range(1, len(bench.schedule.unit(0).packs)):
            bench.ring.release(bench.slot(0, pack))
        assert bench.fetcher.in_store_s(0) == since_s
        bench.fetcher.finish(0)
        assert bench.fetcher.in_store_s(0) is None


def test_a_unit_of_which_no_sample_comes_is_not_in_the_store(recorded_data):
    bench = Bench(recorded_data)
    bench.hub.withhold_from_unit = 0
    with bench:
        assert bench.fetcher.get(0, 0, 0.5) is None
        assert bench.fetcher.in_store_s(0) is None


def test_a_unit_with_a_sample_that_must_be_made_again_is_not_in_the_store_till_then(recorded_data, monkeypatch):
    sample, spoilt, at_loss = recorded.first_sample(recorded_data), [], []

    def once(number: int, data: bytes) -> bytes | None:
        if number != sample or spoilt:
            return data
        spoilt.append(number)
        return None

    bench = Bench(recorded_data, spoil=once)
    call = bench.peers.call

    def look(name: str, method: str, *args: Any, **kwargs: Any) -> Any:
        if method == "lost":
            at_loss.append(bench.fetcher.in_store_s(0))
        return call(name, method, *args, **kwargs)

    monkeypatch.setattr(bench.peers, "call", look)
    with bench:
        bench.check(0, 0, bench.slot(0, 0))
        assert at_loss == [None]
        assert bench.fetcher.in_store_s(0) is not None
