"""Trained samples leave the store in the background, and an outage is waited out."""

import logging
import threading
from functools import partial

import pytest

from dspark_train.errors import PeerTimeout, StoreError
from dspark_train.store.in_memory import InMemoryServer
from dspark_train.trainer.patience import Errand, Patience
from dspark_train.trainer.remover import Remover

LOG = logging.getLogger("test")


def test_what_is_queued_is_removed_before_the_thread_ends():
    server = InMemoryServer()
    client = server.client(1 << 20)
    keys = [f"k{i}" for i in range(600)]
    for key in keys:
        client.put(key, b"x" * 8)
    remover = Remover(client, LOG)
    gone: list[str] = []
    remover.remove(keys, then=gone.extend)
    assert remover.stop(10)
    assert server.keys == set()
    assert gone == keys


def test_stopping_twice_is_fine():
    remover = Remover(InMemoryServer().client(), LOG)
    assert remover.stop(5)
    assert remover.stop(5)


def test_patience_repeats_what_fails_and_says_so_meanwhile():
    faults: list[str] = []
    patience = Patience(10.0, threading.Event(), LOG)

    def attempt() -> str:
        faults.append(patience.fault)
        if len(faults) < 3:
            raise PeerTimeout("no answer")
        return "here"

    assert patience.call("the ledger", PeerTimeout, attempt) == "here"
    assert "the ledger has not answered" in faults[-1]
    assert patience.fault == ""


def test_patience_ends_with_the_last_error_beyond_its_limit_and_with_none_when_stopping():
    stopping = threading.Event()
    patience = Patience(0.0, stopping, LOG)

    def attempt() -> str:
        raise StoreError("gone")

    with pytest.raises(StoreError, match="gone"):
        patience.call("the store", StoreError, attempt)
    stopping.set()
    assert patience.call("the store", StoreError, attempt) is None


def test_an_errand_gives_the_answer_or_the_error_and_is_left_behind_when_the_rank_ends():
    ended, answering = threading.Event(), threading.Event()
    errand = Errand(ended)
    assert errand.call(lambda: 7) == 7
    for error in (PeerTimeout("no answer"), TimeoutError("nor here")):
        with pytest.raises(type(error), match=str(error)):
            errand.call(partial(raise_, error))
    ended.set()
    assert errand.call(lambda: answering.wait(10)) is None
    answering.set()
    errand.close()


def raise_(error: Exception) -> None:
    raise error
