"""What a commit does beside training, and what comes of one that fails."""

from __future__ import annotations

import threading

import pytest

from dspark_train.trainer.committer import Committer

LIMIT_S = 10.0


def test_a_commit_is_made_beside_the_caller_who_settles_it_later():
    committer, answer, made = Committer(), threading.Event(), []
    committer.settle()

    def commit() -> None:
        answer.wait(LIMIT_S)
        made.append(threading.current_thread().name)

    committer.begin(commit)
    assert not made
    threading.Timer(0.05, answer.set).start()
    committer.settle()
    assert made[0].startswith("commit")
    committer.begin(commit)
    committer.settle()
    committer.close()
    committer.close()


def test_what_a_commit_raises_is_raised_where_it_is_settled_once():
    committer = Committer()
    committer.begin(lambda: (_ for _ in ()).throw(ValueError("refused")))
    with pytest.raises(ValueError, match="refused"):
        committer.settle()
    committer.settle()
    committer.close()


def test_closing_waits_for_a_commit_that_nobody_settles():
    committer, answer, ended = Committer(), threading.Event(), []
    committer.begin(lambda: ended.append(answer.wait(LIMIT_S)))
    threading.Timer(0.05, answer.set).start()
    committer.close()
    assert ended == [True]


def test_two_units_are_never_open_at_once():
    committer = Committer()
    committer.begin(lambda: None)
    with pytest.raises(AssertionError, match="not settled"):
        committer.begin(lambda: None)
    committer.close()
