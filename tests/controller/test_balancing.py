"""What members tell of themselves, as the balance is told it."""

from dspark_train.balance.seen import RankSeen
from dspark_train.controller.balancing import _rank


def test_all_clocks_of_a_rank_reach_the_balance():
    status = {"tokens": 7, "busy_s": 1.5, "wait_s": 0.5, "fetch_s": 0.25, "state": "training"}
    assert _rank("rank-0", status) == RankSeen("rank-0", 7.0, 1.5, 0.5, 0.25)
    assert _rank("rank-1", {"tokens": None}) == RankSeen("rank-1", 0.0, 0.0, 0.0, 0.0)
