"""Of an engine that was replaced nothing more is heard, whoever of the two speaks first."""

import pytest

from dspark_train.errors import Replaced
from dspark_train.schedule.lives import Lives


def test_the_newest_life_is_heard_and_older_ones_are_not():
    lives = Lives()
    assert not lives.enter("engine-1.0", 10.0)
    assert not lives.enter("engine-1.0", 10.0)
    assert lives.enter("engine-1.0", 20.0)
    with pytest.raises(Replaced, match=r"engine-1\.0 was given up"):
        lives.enter("engine-1.0", 10.0)


def test_an_ended_life_is_not_heard_before_its_successor_spoke():
    lives = Lives()
    lives.enter("engine-1.0", 10.0)
    lives.end("engine-1.0")
    with pytest.raises(Replaced):
        lives.enter("engine-1.0", 10.0)
    assert lives.enter("engine-1.0", 11.0)


def test_ending_one_never_heard_of_bars_nobody():
    lives = Lives()
    lives.end("engine-1.0")
    assert not lives.enter("engine-1.0", 1.0)
