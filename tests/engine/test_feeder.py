import asyncio
import re
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass

import pytest

from dspark_train.engine import arrivals as arrivals_module
from dspark_train.engine import feeder as feeder_module
from dspark_train.engine import outbox as outbox_module
from dspark_train.engine.feeder import Feeder
from dspark_train.engine.in_flight import Limits
from dspark_train.engine.marker import Marker
from dspark_train.store.in_memory import InMemoryServer
from tests.engine.fakes import SHAPE, FakeEngine, FakeLedger, Tokens

DEADLINE_S = 20.0
MIB = 2**20
LENGTHS = [5, 3, 8, 2, 9, 4, 7, 6]


@dataclass
class Line:
    """A ledger, an engine and a store with one feeder between them."""

    ledger: FakeLedger
    engine: FakeEngine
    server: InMemoryServer
    feeder: Feeder

    async def until(self, fact: Callable[[], object]) -> None:
        deadline_s = time.monotonic() + DEADLINE_S
        while not fact():
            assert time.monotonic() < deadline_s, (self.ledger, self.feeder.error, self.feeder.broken)
            await asyncio.sleep(0.002)

    async def all_ready(self) -> None:
        await self.until(lambda: len({self.ledger.leased[key][0] for key in self.ledger.ready}) == len(LENGTHS))


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeder_module, "FIRST_PAUSE_S", 0.005)
    for module in (feeder_module, outbox_module):
        monkeypatch.setattr(module, "RETRY_S", 0.01)
    monkeypatch.setattr(feeder_module, "LONGEST_PAUSE_S", 0.02)
    monkeypatch.setattr(feeder_module, "WATCH_S", 0.01)
    monkeypatch.setattr(outbox_module, "SWEEP_S", 0.02)


def run(
    test: Callable[[Line], Coroutine[None, None, None]],
    *,
    max_samples: int = 4,
    max_tokens: int = 100,
    request_timeout_s: float = DEADLINE_S,
    silence_s: float = DEADLINE_S,
    dataset: object = None,
) -> Line:
    async def body() -> Line:
        server = InMemoryServer()
        owner = server.client(16 * MIB)
        engine, ledger = FakeEngine(server), FakeLedger(LENGTHS, owner.segment)
        feeder = Feeder(
            engine="engine-1.0",
            peers=ledger,
            store=server.client(),
            dataset=dataset or Tokens(LENGTHS),
            base_url="http://engine",
            model="m",
            shape=SHAPE,
            limits=Limits(max_samples, max_tokens, max(LENGTHS), request_timeout_s),
            silence_s=silence_s,
            alive=lambda: engine.alive,
            end_engine=engine.end,
            transport=engine.transport,
        )
        line = Line(ledger, engine, server, feeder)
        feeder.start()
        try:
            await test(line)
        finally:
            await feeder.stop()
            await feeder.stop()
        return line

    return asyncio.run(body())


def test_every_leased_sample_arrives_once_and_is_reported_with_its_bytes():
    line = run(Line.all_ready)
    assert line.server.keys == set(line.ledger.ready) == set(line.ledger.leased)
    for key, ready in line.ledger.ready.items():
        assert len(line.server.find(key)) == ready.num_bytes
        assert line.server.segment_of(key) == line.ledger.segment
    assert line.feeder.tokens == sum(LENGTHS)
    assert line.ledger.lost == []
    assert line.feeder.error == line.feeder.broken == ""
    assert line.feeder.in_flight == 0


def test_no_more_is_in_flight_than_the_limits_allow():
    async def slow(line: Line) -> None:
        line.engine.answer_s = 0.01
        await line.all_ready()

    line = run(slow, max_samples=3, max_tokens=14)
    assert line.engine.most_in_flight <= 3
    assert line.engine.most_tokens <= 14
    assert all(samples <= 3 and max(LENGTHS) <= tokens <= 14 for samples, tokens in line.ledger.asked)


def test_a_sample_is_ready_when_its_object_is_there_not_when_the_engine_answered():
    async def late_put(line: Line) -> None:
        line.engine.put_s = 0.05
        await line.until(lambda: line.feeder.in_flight == 4 and line.engine.num_requests == 4)
        assert not line.ledger.ready
        await line.all_ready()

    assert run(late_put).server.keys


@pytest.mark.parametrize(
    ("marker", "reason"),
    [
        (Marker("fault", "Non-finite producer tensor"), "Non-finite producer tensor"),
        (Marker("full", "put k: no segment has room"), "the store is full: put k: no segment has room"),
    ],
)
def test_a_marker_tells_why_a_sample_is_lost_and_is_removed(marker, reason):
    async def marked(line: Line) -> None:
        line.engine.markers[2] = marker
        await line.until(lambda: line.ledger.lost)
        line.engine.markers.clear()
        await line.all_ready()
        await line.until(lambda: not any(key.endswith(":error") for key in line.server.keys))

    line = run(marked)
    assert [(lost.key, lost.reason) for lost in line.ledger.lost][:1] == [("run/0-0-2-1", reason)]


def test_an_engine_that_answers_with_errors_gets_no_sample_until_it_is_well_again():
    async def failing(line: Line) -> None:
        line.engine.status = {sample: [500] for sample in range(4)}
        line.engine.trial_status = [500, 503, 500]
        await line.all_ready()

    line = run(failing, max_samples=4)
    assert [line.ledger.leased[lost.key] for lost in line.ledger.lost] == [(sample, 1) for sample in range(4)]
    assert "the engine answered 500: EngineCore encountered an issue" in line.ledger.lost[0].reason
    assert line.engine.num_trials == 4
    assert line.feeder.broken == ""


def test_a_request_that_the_engine_will_not_have_is_lost_alone():
    async def rejected(line: Line) -> None:
        line.engine.status = {2: [400]}
        await line.all_ready()

    line = run(rejected)
    assert [lost.key for lost in line.ledger.lost] == ["run/0-0-2-1"]


def test_a_request_that_hangs_is_lost_after_its_deadline_and_the_others_go_on():
    async def hanging(line: Line) -> None:
        line.engine.hangs.add(1)
        await line.until(lambda: len(line.ledger.ready) == len(LENGTHS) - 1 and line.ledger.lost)
        line.engine.hangs.clear()
        await line.all_ready()

    line = run(hanging, request_timeout_s=0.5)
    assert {lost.reason for lost in line.ledger.lost} == {"no answer within 0.5 s"}
    assert {line.ledger.leased[lost.key][0] for lost in line.ledger.lost} == {1}


def test_an_object_that_does_not_arrive_is_lost_after_its_deadline_and_removed_when_it_comes_after_all():
    async def late(line: Line) -> None:
        line.engine.late_s[1] = 0.6
        await line.until(lambda: line.ledger.lost)
        line.engine.late_s.clear()
        await line.all_ready()
        await line.until(lambda: not line.engine.puts)
        await line.until(lambda: line.server.keys == set(line.ledger.ready))

    line = run(late, request_timeout_s=0.3)
    assert any("not in the store before its deadline" in gone.reason for gone in line.ledger.lost)


def test_an_engine_that_ran_other_tokens_is_not_believed():
    async def wrong(line: Line) -> None:
        line.engine.wrong_tokens.add(3)
        await line.until(lambda: line.ledger.lost)

    line = run(wrong)
    assert line.ledger.lost[0].reason.startswith("run/0-0-3-1: the engine ran other tokens than it was given")


def test_a_ledger_that_is_away_for_a_while_is_told_everything_later():
    async def away(line: Line) -> None:
        line.ledger.num_unreachable, line.ledger.num_answers_lost = 3, 2
        await line.all_ready()

    line = run(away)
    assert set(line.ledger.ready) == set(line.ledger.leased)
    assert line.server.keys == set(line.ledger.ready)


def test_a_store_that_does_not_answer_for_a_while_loses_nothing():
    async def unreachable(line: Line) -> None:
        line.server.faults.num_failing_checks = 5
        await line.until(lambda: "does not say what has arrived" in line.feeder.error)
        await line.all_ready()

    line = run(unreachable)
    assert line.ledger.lost == []
    assert line.server.faults.num_failing_checks == 0


def test_keys_that_the_ledger_does_not_want_are_removed():
    async def unwanted(line: Line) -> None:
        await line.until(lambda: line.ledger.ready)
        key = next(iter(line.ledger.ready))
        line.ledger.unwanted = [key]
        await line.until(lambda: key not in line.server.keys)

    run(unwanted)


def test_draining_leases_no_more_and_lets_everything_in_flight_arrive():
    async def drained(line: Line) -> None:
        line.engine.answer_s = line.engine.put_s = 0.02
        await line.until(lambda: line.feeder.in_flight == 2)
        assert await line.feeder.drain()
        assert line.feeder.in_flight == 0

    line = run(drained, max_samples=2)
    assert set(line.ledger.ready) == set(line.ledger.leased)
    assert len(line.ledger.ready) < len(LENGTHS)


def test_a_dead_engine_gives_its_leases_back_without_burning_an_attempt():
    async def dies(line: Line) -> None:
        line.engine.hangs = set(range(len(LENGTHS)))
        await line.until(lambda: line.engine.in_flight == 4)
        line.engine.alive = False
        await line.until(lambda: line.ledger.dropped)

    line = run(dies, request_timeout_s=0.1)
    assert line.ledger.dropped == ["engine-1.0"]
    assert line.feeder.error == "the engine's process has ended"
    assert line.feeder.in_flight == 0


async def given_up(line: Line) -> None:
    await line.until(lambda: line.engine.ended)


@pytest.mark.parametrize("max_samples", [1, 4])
def test_an_engine_that_hangs_is_given_up_and_costs_no_sample_more_than_one_attempt(max_samples):
    async def hangs(line: Line) -> None:
        line.engine.hangs_at_all = True
        await given_up(line)

    line = run(hangs, request_timeout_s=0.3, max_samples=max_samples)
    assert line.feeder.broken.startswith("hung: nothing for ")
    assert line.ledger.dropped == ["engine-1.0"]
    assert line.feeder.in_flight == 0
    assert {attempt for _, attempt in map(line.ledger.leased.get, (gone.key for gone in line.ledger.lost))} <= {1}


def test_an_engine_that_answers_and_never_puts_is_given_up_even_with_one_request_at_a_time():
    async def never_puts(line: Line) -> None:
        line.engine.late_s = dict.fromkeys(range(len(LENGTHS)), 3600.0)
        await given_up(line)

    line = run(never_puts, request_timeout_s=0.3, max_samples=1)
    assert line.feeder.broken.startswith("hung: nothing for ")
    assert line.engine.num_trials >= 1
    assert len(line.ledger.lost) <= 3


def test_an_engine_that_fails_with_samples_only_costs_few_of_them_an_attempt():
    async def fails(line: Line) -> None:
        line.engine.status = {sample: [500] * 1000 for sample in range(len(LENGTHS))}
        await given_up(line)

    line = run(fails, request_timeout_s=0.3)
    assert line.feeder.broken.startswith("fails: nothing but errors for ")
    assert len(line.ledger.lost) < 4 + 0.5 / 0.02


def test_an_engine_that_only_fails_is_given_up():
    async def fails(line: Line) -> None:
        line.engine.status = {sample: [500] * 1000 for sample in range(len(LENGTHS))}
        line.engine.trial_status = [500] * 1000
        await given_up(line)

    line = run(fails, request_timeout_s=0.3)
    assert line.feeder.broken.startswith("fails: nothing but errors for ")
    assert len(line.ledger.lost) <= 4


def test_an_engine_whose_samples_are_wrong_one_after_the_other_is_given_up():
    async def lies(line: Line) -> None:
        line.engine.markers = {
            sample: Marker("wrong", "Non-finite producer tensor") for sample in range(2, len(LENGTHS))
        }
        line.engine.wrong_tokens.add(4)
        await given_up(line)

    line = run(lies)
    assert re.match(r"lies: \d different samples in a row were wrong; last: ", line.feeder.broken)


def test_one_bad_sample_is_no_reason_to_give_an_engine_up():
    async def bad(line: Line) -> None:
        line.engine.markers[0] = Marker("wrong", "Non-finite producer tensor")
        await line.until(lambda: len(line.ledger.lost) > 5)

    assert run(bad).feeder.broken == ""


def test_an_engine_without_its_ledger_fences_itself():
    async def cut_off(line: Line) -> None:
        await line.until(lambda: line.ledger.ready)
        line.ledger.num_unreachable = 10**6
        await given_up(line)

    line = run(cut_off, silence_s=0.4)
    assert line.feeder.broken.startswith("cut off from the ledger for ")
    assert line.ledger.dropped == []
    assert line.feeder.in_flight == 0


def test_a_ledger_that_is_only_not_needed_is_called_all_the_same():
    async def long_requests(line: Line) -> None:
        line.engine.answer_s = 1.5
        await line.all_ready()

    assert run(long_requests, silence_s=0.6, max_samples=len(LENGTHS)).feeder.broken == ""


def test_while_the_store_does_not_answer_the_engine_is_not_blamed():
    async def unreachable(line: Line) -> None:
        line.server.faults.num_failing_checks = 10**6
        await line.until(lambda: len(line.ledger.lost) > 4)
        assert not line.feeder.broken
        line.server.faults.num_failing_checks = 0
        await line.all_ready()

    assert run(unreachable, request_timeout_s=0.3).feeder.broken == ""


def test_where_nobody_can_put_anything_the_engine_is_not_blamed():
    async def gone(line: Line) -> None:
        line.server.drop_segment(line.ledger.segment)
        line.engine.late_s = dict.fromkeys(range(len(LENGTHS)), 3600.0)
        await line.until(lambda: len(line.ledger.lost) > 4)

    assert run(gone, request_timeout_s=0.2).feeder.broken == ""


def test_a_sample_whose_segment_takes_nothing_is_reported_after_a_while_or_when_draining(monkeypatch):
    async def unreachable(line: Line) -> None:
        line.engine.markers = dict.fromkeys(range(4), Marker("unreachable", "put k: segment s took nothing"))
        await line.until(lambda: line.feeder.num_lost == 4 and len(line.ledger.ready) == 4)
        assert not line.ledger.lost
        assert await line.feeder.drain()
        assert [lost.is_unreachable for lost in line.ledger.lost] == [True] * 4

    run(unreachable)
    monkeypatch.setattr(arrivals_module, "SHUN_S", 0.2)

    async def after_a_while(line: Line) -> None:
        line.engine.markers = {3: Marker("unreachable", "put k: segment s took nothing")}
        await line.until(lambda: line.ledger.lost)
        line.engine.markers.clear()
        await line.all_ready()

    assert run(after_a_while).feeder.broken == ""


def test_an_error_of_ours_is_seen_and_not_swallowed():
    class Broken:
        def token_ids(self, sample: int) -> object:
            raise KeyError(sample)

    async def broken(line: Line) -> None:
        await line.until(lambda: line.feeder.broken)

    assert run(broken, dataset=Broken()).feeder.broken == "the feeder failed: KeyError: 0"
