"""Silence is not death until it has lasted."""

from dspark_train.controller.hearing import Hearing

READY = {"state": "ready", "pid": 7}


def test_a_short_silence_keeps_the_last_status():
    hearing = Hearing(silence_s=60)
    hearing.take(0.0, {"rank-0": READY})
    assert hearing.take(1.0, {"rank-0": None})["rank-0"] == READY
    assert hearing.take(60.9, {"rank-0": None})["rank-0"] == READY


def test_a_long_silence_is_death():
    hearing = Hearing(silence_s=60)
    hearing.take(0.0, {"rank-0": READY})
    hearing.take(1.0, {"rank-0": None})
    status = hearing.take(61.0, {"rank-0": None})["rank-0"]
    assert status == {"state": "dead", "pid": 7, "error": "it has not answered for 60 s"}


def test_an_answer_ends_the_silence():
    hearing = Hearing(silence_s=60)
    hearing.take(0.0, {"rank-0": None})
    hearing.take(50.0, {"rank-0": READY})
    assert hearing.take(70.0, {"rank-0": None})["rank-0"] == READY


def test_a_member_never_heard_is_starting():
    assert Hearing(silence_s=60).take(0.0, {"rank-0": None})["rank-0"]["state"] == "starting"
