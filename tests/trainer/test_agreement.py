"""Ranks leave a meeting together, or learn that it will not take place."""

import threading
import time

import pytest
import torch.distributed as dist

from dspark_train.errors import PeerLost
from dspark_train.trainer.agreement import Agreement, gather
from dspark_train.trainer.group import GroupBroken
from dspark_train.trainer.process_group import Rendezvous

pytestmark = pytest.mark.torch
WAIT_S = 20.0


@pytest.fixture
def rendezvous():
    return Rendezvous(WAIT_S)


def store(rendezvous: Rendezvous) -> dist.Store:
    return dist.TCPStore("localhost", rendezvous.port, is_master=False, wait_for_workers=False)


def agreement(rendezvous: Rendezvous, world_size: int, is_whole: bool = True) -> Agreement:
    return Agreement(dist.PrefixStore("agree", store(rendezvous)), world_size, lambda: is_whole)


def test_nobody_leaves_before_the_last_has_come(rendezvous):
    ranks = [agreement(rendezvous, 3) for _ in range(3)]
    left: list[int] = []
    looked = threading.Event()

    def come(rank: int) -> None:
        assert ranks[rank].reach(lambda: looked.set() is not None)
        left.append(rank)

    early = [threading.Thread(target=come, args=(rank,)) for rank in (0, 1)]
    for thread in early:
        thread.start()
    assert looked.wait(WAIT_S)
    assert left == []
    come(2)
    for thread in early:
        thread.join(WAIT_S)
    assert sorted(left) == [0, 1, 2]


def test_many_meetings_in_a_row_leave_few_keys_behind(rendezvous):
    ranks = [agreement(rendezvous, 2) for _ in range(2)]

    def go(rank: int) -> None:
        assert all(ranks[rank].reach(lambda: False) for _ in range(50))

    other = threading.Thread(target=go, args=(1,))
    other.start()
    go(0)
    other.join(WAIT_S)
    assert not other.is_alive()
    assert rendezvous.server.num_keys() < 15


def test_a_rank_that_waits_learns_that_the_run_ends(rendezvous):
    looks = iter([False, False, True])
    assert not agreement(rendezvous, 2).reach(lambda: next(looks))


def test_one_rank_alone_waits_for_nobody(rendezvous):
    assert agreement(rendezvous, 1).reach(lambda: True)


def test_a_rendezvous_that_is_gone_is_an_error(rendezvous):
    waiting = agreement(rendezvous, 2)

    def end() -> bool:
        rendezvous.server = None
        return False

    with pytest.raises(PeerLost, match="rendezvous is gone"):
        waiting.reach(end)


def test_a_rank_that_waits_for_one_that_is_gone_is_told(rendezvous):
    with pytest.raises(GroupBroken, match="another rank died"):
        agreement(rendezvous, 2, is_whole=False).reach(lambda: False)


def test_a_unit_is_done_once_every_rank_has_said_so(rendezvous):
    first, second = (agreement(rendezvous, 2) for _ in range(2))
    looks = iter([False, False, True])
    first.tell_done()
    assert not first.all_done(lambda: next(looks))
    second.tell_done()
    assert first.all_done(lambda: False)
    second.tell_done()
    first.tell_done()
    assert first.all_done(lambda: False)
    assert agreement(rendezvous, 1).all_done(lambda: True)


def test_a_rank_that_died_before_it_said_so_is_missed(rendezvous):
    waiting = agreement(rendezvous, 2, is_whole=False)
    waiting.tell_done()
    with pytest.raises(GroupBroken):
        waiting.all_done(lambda: False)


def test_ranks_leave_together_and_the_server_of_the_rendezvous_last(rendezvous):
    left: list[str] = []
    ranks = {name: agreement(rendezvous, 2) for name in ("server", "other")}

    def leave(name: str) -> None:
        ranks[name].part(name == "server", lambda: False)
        left.append(name)

    server = threading.Thread(target=leave, args=("server",))
    server.start()
    time.sleep(0.05)
    assert left == []
    leave("other")
    server.join(WAIT_S)
    assert sorted(left) == ["other", "server"]


@pytest.mark.parametrize("is_whole", [True, False])
def test_a_rank_leaves_alone_where_the_others_are_gone_or_it_is_halted(rendezvous, is_whole):
    began_s = time.monotonic()
    agreement(rendezvous, 2, is_whole).part(False, lambda: is_whole)
    assert time.monotonic() - began_s < WAIT_S / 10


def test_a_group_gathers_without_hurry_before_rank_0_is_there_and_within_the_time_out_afterwards(rendezvous):
    early, first = store(rendezvous), store(rendezvous)
    looks = iter(3 * [False] + [True])
    assert not gather(early, 1, 2, 0.0, lambda: next(looks))
    rendezvous = Rendezvous(WAIT_S)
    first = store(rendezvous)
    with pytest.raises(TimeoutError, match="only 1 of 2 ranks are here"):
        gather(first, 0, 2, 0.05, lambda: False)
    assert gather(store(rendezvous), 1, 2, 0.05, lambda: False)
