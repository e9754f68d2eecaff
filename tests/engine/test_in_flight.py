from hypothesis import given
from hypothesis import strategies as st

from dspark_train.engine.in_flight import InFlight, Limits
from dspark_train.schedule.messages import Lease


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def lease(key: str, num_tokens: int = 10, lease_s: float = 60.0) -> Lease:
    return Lease(key, 0, num_tokens, "segment", 0, 1, lease_s)


def test_time_with_nothing_leased_is_blocked_and_the_rest_is_busy():
    clock = Clock()
    flights = InFlight(Limits(8, 100, 10, 50.0), clock)
    clock.now_s = 3.0
    flights.begin([lease("a"), lease("b")])
    clock.now_s = 5.0
    flights.end("a")
    clock.now_s = 9.0
    flights.end("b")
    clock.now_s = 10.0
    assert flights.times_s() == (6.0, 4.0)


def test_a_deadline_is_the_earlier_of_request_and_lease():
    clock = Clock()
    clock.now_s = 100.0
    flights = InFlight(Limits(8, 100, 10, 50.0), clock)
    assert [f.deadline_s for f in flights.begin([lease("a"), lease("b", lease_s=20.0)])] == [150.0, 120.0]


def test_only_answered_flights_are_awaited_and_ending_twice_is_seen():
    flights = InFlight(Limits(8, 100, 10, 50.0), Clock())
    first, _ = flights.begin([lease("a"), lease("b")])
    first.num_bytes = 64
    assert flights.answered() == [first]
    assert flights.end("a") is first
    assert flights.end("a") is None
    assert flights.keys() == ["b"]


def test_with_nothing_in_flight_the_longest_sample_is_asked_for_whatever_the_limit():
    assert InFlight(Limits(4, 5, 10, 50.0), Clock()).room() == (4, 10)


@given(st.lists(st.integers(1, 30), max_size=40), st.integers(1, 8), st.integers(30, 100))
def test_what_is_asked_for_never_leads_over_the_limits(lengths, max_samples, max_tokens):
    flights = InFlight(Limits(max_samples, max_tokens, 30, 50.0), Clock())
    for i, num_tokens in enumerate(lengths):
        samples, tokens = flights.room()
        if samples:
            assert tokens >= 30
            flights.begin([lease(str(i), num_tokens)])
        else:
            flights.end(flights.keys()[0])
        assert len(flights) <= max_samples
