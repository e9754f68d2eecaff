import threading

import pytest

from dspark_train.errors import StoreError
from dspark_train.store.deadline import Deadlines, Span

LONG_S = 20.0


def test_a_call_in_time_gives_its_result_or_its_error():
    deadlines = Deadlines(LONG_S)
    assert deadlines.run("sum", lambda: 1 + 1) == 2
    with pytest.raises(ZeroDivisionError):
        deadlines.run("divide", lambda: 1 // 0)


def test_a_hanging_call_ends_in_an_error_naming_it():
    hang = threading.Event()
    with pytest.raises(StoreError, match=r"read run/key: no answer within 0.05 s"):
        Deadlines(0.05).run("read run/key", lambda: hang.wait(LONG_S))
    hang.set()


def test_memory_of_an_abandoned_read_is_not_lent_out_before_it_ended():
    hang, deadlines, order = threading.Event(), Deadlines(0.05), []
    with pytest.raises(StoreError):
        deadlines.run("first", lambda: (hang.wait(LONG_S), order.append("first")), writes=[Span(100, 200)])
    with pytest.raises(StoreError, match="second: an earlier read into the same memory has not ended"):
        deadlines.run("second", lambda: order.append("second"), writes=[Span(199, 300)])
    deadlines.run("elsewhere", lambda: order.append("elsewhere"), writes=[Span(200, 300)])
    threading.Timer(0.05, hang.set).start()
    deadlines.run("third", lambda: order.append("third"), writes=[Span(0, 101)], timeout_s=LONG_S)
    assert order == ["elsewhere", "first", "third"]


def test_after_closing_calls_are_refused_and_hanging_ones_are_told():
    hang, deadlines = threading.Event(), Deadlines(0.05)
    with pytest.raises(StoreError):
        deadlines.run("first", lambda: hang.wait(LONG_S))
    assert not deadlines.close(0.05)
    hang.set()
    assert deadlines.close(LONG_S)
    with pytest.raises(StoreError, match="second: the client is closed"):
        deadlines.run("second", lambda: None)
