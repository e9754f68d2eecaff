"""How deep an engine is filled: a table of looks, and a scheduler on a virtual clock."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspark_train.engine import depth_watch
from dspark_train.engine.depth import Depth, DepthRule, Gauges, Scheduled, between, decide_depth, parse_gauges
from dspark_train.engine.depth_watch import DepthWatch
from dspark_train.engine.in_flight import InFlight, Limits
from dspark_train.engine.load import Load, parse_load
from dspark_train.engine.requests import Requests
from tests.engine.fakes import SHAPE, FakeEngine, Tokens
from tests.engine.test_in_flight import Clock, lease

RULE = DepthRule(num_max=64)


@pytest.mark.parametrize(
    ("depth", "peak", "batch", "waiting", "given", "expected", "why"),
    [
        # depth and largest batch before; batch, waiting and given now
        (8, 0, 8, 0, 8, 10, "it takes more"),
        (2, 0, 2, 0, 2, 3, "it takes more"),
        (60, 0, 60, 0, 60, 64, "it takes more"),  # never above the limit
        (64, 0, 64, 0, 64, 64, "it takes more"),
        (8, 0, 3, 0, 3, 8, "the ledger has no more"),  # not full: that nothing waits says nothing
        (16, 0, 8, 8, 16, 16, "a batch waits"),
        (16, 0, 8, 2, 10, 16, "a batch waits"),
        (64, 0, 8, 56, 64, 18, "56 wait behind a batch of 8"),
        (64, 30, 8, 56, 64, 56, "56 wait behind a batch of 27"),  # a look between two batches does not count for all
        (64, 0, 0, 64, 64, 2, "64 wait behind a batch of 0"),
        (4, 0, 1, 3, 4, 4, "a batch waits"),  # as deep as the rule wants it
        (16, 0, 3.2, 0, 16, 20, "it takes more"),
        (64, 0, 2.5, 40, 64, 8, "40 wait behind a batch of 3"),
        (18, 8, 8, 10, 18, 18, "a batch waits"),  # where the table above ends up, it stays
    ],
)
def test_the_depth_follows_what_the_scheduler_takes(depth, peak, batch, waiting, given, expected, why):
    decided, reason = decide_depth(RULE, Depth(depth, peak), Scheduled(batch, waiting, given))
    assert decided.num == expected
    assert why in reason


@given(
    st.lists(st.tuples(st.floats(0, 300), st.integers(0, 300), st.integers(0, 64)), max_size=60),
    st.integers(1, 64),
)
def test_no_look_leads_beyond_the_limits(looks, num_max):
    rule = DepthRule(num_max)
    depth = Depth(num_max)
    for batch, waiting, given_ in looks:
        depth, _ = decide_depth(rule, depth, Scheduled(batch, waiting, given_))
        assert min(rule.num_min, num_max) <= depth.num <= num_max


@pytest.mark.parametrize(("batch", "lowest", "highest"), [(1, 2, 6), (4, 8, 12), (16, 32, 40), (64, 64, 64)])
def test_an_engine_of_any_batch_size_ends_up_with_a_batch_behind_the_one_that_runs(batch, lowest, highest):
    depth = Depth(RULE.num_max)
    for _ in range(60):
        taken = min(batch, depth.num)
        depth, _ = decide_depth(RULE, depth, Scheduled(taken, depth.num - taken, depth.num))
    assert lowest <= depth.num <= highest


def test_metrics_are_summed_over_the_cores_of_an_engine_and_the_reasons_to_end():
    text = """# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_running{engine="0",model_name="m"} 0.0
vllm:num_requests_waiting{engine="0",model_name="m"} 7.0
vllm:num_requests_waiting{engine="1",model_name="m"} 1.0
vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 99.0
vllm:request_success_total{engine="0",finished_reason="stop"} 5.0
vllm:request_success_total{engine="0",finished_reason="length"} 1.2e+02
vllm:iteration_tokens_total_count{engine="0"} 30.0
"""
    assert parse_gauges(text) == Gauges(8, 125, 30)
    assert parse_gauges(text.replace("iteration_tokens_total_count", "other")) is None
    assert parse_gauges("") is None


def test_an_engines_load_is_read_over_its_cores():
    text = """vllm:num_requests_running{engine="0",model_name="m"} 1.0
vllm:num_requests_running{engine="1",model_name="m"} 2.0
vllm:num_requests_waiting{engine="0",model_name="m"} 7.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.0
vllm:prompt_tokens_total{engine="0"} 1.5e+06
vllm:prompt_tokens_by_source_total{engine="0",source="local"} 99.0
vllm:request_success_total{engine="0",finished_reason="stop"} 5.0
vllm:request_success_total{engine="0",finished_reason="length"} 120.0
"""
    assert parse_load(text) == Load(running=3, waiting=7, finished=125, prompt_tokens=1_500_000, kv_cache_frac=0.25)
    assert parse_load(text.replace("prompt_tokens_total", "other")) is None
    assert parse_load("") is None


@pytest.mark.parametrize(
    ("before", "now", "seen"),
    [
        (Gauges(0, 10, 5), Gauges(3, 22, 9), Scheduled(3.0, 3, 7)),
        (Gauges(0, 10, 5), Gauges(3, 10, 5), None),  # one long iteration
        (Gauges(0, 10, 5), Gauges(0, 0, 6), None),  # another process
    ],
)
def test_a_batch_is_what_ended_in_one_iteration(before, now, seen):
    assert between(before, now, 7) == seen


def test_room_is_bounded_by_the_depth_for_what_is_at_the_engine_and_by_the_limit_for_all():
    flights = InFlight(Limits(4, 1000, 10, 50.0), Clock())
    assert flights.room() == (4, 1000)
    flights.depth = 2
    assert flights.room()[0] == 2
    first, _ = flights.begin([lease("a"), lease("b")])
    assert flights.room() == (0, 0)
    first.num_bytes = 64  # answered: being put
    assert flights.num_given == 1
    assert flights.room()[0] == 1
    flights.depth = 64
    assert flights.room()[0] == 2, "never more than the limit in flight"


def metrics(num_waiting: int, num_ended: int, num_iterations: int) -> str:
    return (
        f"vllm:num_requests_waiting {num_waiting}\nvllm:request_success_total {num_ended}\n"
        f"vllm:iteration_tokens_total_count {num_iterations}\n"
    )


def test_a_watch_follows_the_engines_own_metrics_and_ends_where_there_are_none(monkeypatch):
    monkeypatch.setattr(depth_watch, "LOOK_S", 0.001)
    from dspark_train.store.in_memory import InMemoryServer

    async def play() -> tuple[int, int, bool]:
        engine = FakeEngine(InMemoryServer())
        requests = Requests(
            base_url="http://engine",
            model="m",
            shape=SHAPE,
            dataset=Tokens([1]),
            max_samples=8,
            transport=engine.transport,
            clock=Clock(),
        )
        flights, woken = InFlight(Limits(8, 1000, 10, 50.0), Clock()), asyncio.Event()
        watch = DepthWatch("engine-1", requests, flights, woken.set)
        engine.metrics = metrics(7, 100, 100)
        running = asyncio.create_task(watch.run())
        await asyncio.sleep(0.05)
        assert flights.depth == 8, "one look says nothing of a batch"
        engine.metrics = metrics(7, 110, 110)
        await asyncio.wait_for(woken.wait(), 10)
        shallow = flights.depth
        engine.metrics = ""
        await asyncio.wait_for(running, 10)
        await requests.close()
        return shallow, flights.depth, running.done()

    assert asyncio.run(play()) == (4, 4, True)
