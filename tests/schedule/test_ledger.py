import re

import numpy as np
import pytest

from dspark_train.schedule.leases import key_prefix
from dspark_train.schedule.ledger import Ledger
from dspark_train.schedule.messages import Lost, Member, Ready, TakeReply
from dspark_train.schedule.rule import LedgerRule
from dspark_train.schedule.steps import Schedule, ScheduleSpec

BYTES = 10
"""A token, in these tests; a sample of 10 tokens has 100 bytes, a pack of 40 tokens 400, a step of 4 packs 1600."""
ROOM = 10**6


def rule(**kwargs):
    settings = {"key_prefix": "run/1", "lease_s": 60, "max_attempts": 3, "max_failed_frac": 1, "high_mark_frac": 1}
    return LedgerRule(**(settings | kwargs))


def ledger(*, num_samples=160, num_ranks=2, room=ROOM, first_unit=0, running=True, spec=None, **rules):
    settings = {"seq_len": 40, "step_packs": 4, "seed": 3, "epochs": 1} | (spec or {})
    schedule = Schedule(ScheduleSpec(lengths_tokens=np.full(num_samples, 10), **settings))
    made = Ledger(schedule, lambda num_tokens: num_tokens * BYTES, rule(**rules), first_unit)
    made.set_group(members(num_ranks, room), 1)
    if running:
        made.run()
    return made


def members(num_ranks, room=ROOM):
    return [Member(f"rank-{r}", f"host-{r}:1", room) for r in range(num_ranks)]


def ready(leases):
    return [Ready(lease.key, lease.num_tokens * BYTES) for lease in leases]


def put(made, leases, engine="e", now_s=0.0):
    return made.report(engine, ready(leases), [], now_s)


def fill(made, num_samples=1000, engine="e", now_s=0.0):
    leases = made.lease(engine, num_samples, 10**9, now_s)
    put(made, leases, engine, now_s)
    return leases


def take_all(made, unit, num_ranks=2):
    return [made.take(f"rank-{r}", unit) for r in range(num_ranks)]


def places(leases):
    return [tuple(map(int, re.match(r"run/1/(\d+)-(\d+)-(\d+)-", lease.key).groups())) for lease in leases]


# -- leasing -----------------------------------------------------------------------------------------------------------


def test_leases_come_in_schedule_order_and_name_the_segment_of_the_rank_that_trains_them():
    made = ledger()
    leases = made.lease("e", 40, 10**9, 0)
    assert places(leases) == sorted(places(leases))
    assert places(leases)[0] == (0, 0, 0)
    assert [lease.segment for lease in leases[:16]] == ["host-0:1"] * 8 + ["host-1:1"] * 8
    assert [lease.unit for lease in leases] == [0] * 16 + [1] * 16 + [2] * 8


def test_a_lease_ends_at_the_first_sample_beyond_the_tokens_asked_for():
    made = ledger()
    assert len(made.lease("e", 40, 35, 0)) == 3
    assert made.lease("e", 40, 9, 0) == []


def test_nothing_is_leased_before_the_run_begins():
    made = ledger(running=False)
    assert made.lease("e", 5, 100, 0) == []
    assert made.view().state == "idle"
    made.run()
    assert len(made.lease("e", 5, 100, 0)) == 5


def test_keys_hold_only_letters_that_every_store_takes():
    assert key_prefix("a run/with:ö", "x y") == "a_run_with__/x_y"


# -- back-pressure -----------------------------------------------------------------------------------------------------


def test_leases_end_at_the_high_mark_of_each_segment():
    made = ledger(room=2000, high_mark_frac=0.85)
    leases = made.lease("e", 1000, 10**9, 0)
    assert made.view().resident_bytes == 2 * 1700
    assert {segment: sum(lease.segment == segment for lease in leases) for segment in ("host-0:1", "host-1:1")} == {
        "host-0:1": 17,
        "host-1:1": 17,
    }


def test_a_commit_makes_room_for_as_many_bytes():
    made = ledger(room=1600)
    fill(made)
    assert made.lease("e", 1000, 10**9, 0) == []
    take_all(made, 0)
    assert made.commit(0, 1)
    assert len(made.lease("e", 1000, 10**9, 0)) == 16


def test_a_full_segment_does_not_hold_up_the_others():
    made = ledger(num_ranks=1)
    made.set_group([Member("rank-0", "small", 800), Member("rank-1", "large", 2400)], 2)
    leases = made.lease("e", 1000, 10**9, 0)
    assert [lease.unit for lease in leases if lease.segment == "small"] == [0] * 8
    assert [lease.unit for lease in leases if lease.segment == "large"] == [0] * 8 + [1] * 8 + [2] * 8


def test_a_lost_sample_of_the_unit_in_training_gets_its_room_back_first():
    made = ledger(room=1600)
    leases = fill(made)
    reply = made.take("rank-1", 0)
    made.lost("rank-1", [Lost(reply.samples[0].key, "not finite")], 0)
    again = made.lease("e", 1000, 10**9, 0)
    assert [(lease.unit, lease.sample, lease.attempt) for lease in again] == [(0, leases[8].sample, 2)]


def test_a_reply_that_never_reached_the_rank_is_handed_out_again():
    made = ledger()
    fill(made, num_samples=4)
    first = made.take("rank-0", 0, num_received=0).samples
    assert made.take("rank-0", 0, num_received=0).samples == first
    fill(made)
    rest = made.take("rank-0", 0, num_received=len(first))
    assert rest.samples
    assert rest.complete
    assert not {sample.key for sample in rest.samples} & {sample.key for sample in first}
    assert made.take("rank-0", 0, num_received=len(first)).samples == rest.samples
    assert made.take("rank-0", 0, num_received=len(first) + len(rest.samples)).samples == ()
    assert made.view().taken == len(first) + len(rest.samples)


def test_a_share_that_can_never_fit_fails_the_run_and_says_what_to_do():
    made = ledger(room=700)
    view = made.view()
    assert view.state == "failed"
    assert (
        "train unit 0 (step 1): the share of rank-0 takes 800 bytes, but only 700 of its segment host-0:1"
        in view.reason
    )
    assert "store.segment_gib" in view.reason
    assert made.take("rank-0", 0).kind == "stop"


def test_a_validation_round_larger_than_the_store_goes_through_by_releases():
    spec = {"validation_frac": 0.9, "seq_len": 40, "step_packs": 1, "epochs": 1}
    made = ledger(num_samples=100, num_ranks=1, room=800, spec=spec, ranks_release=True)
    rounds = 0
    while not (reply := made.take("rank-0", 0)).complete:
        made.release("rank-0", [sample.key for sample in reply.samples])
        fill(made)
        rounds += 1
        assert rounds < 20
        assert made.view().resident_bytes <= 800
    assert made.commit(0, 1)
    assert made.view().trained == 90


def test_a_validation_round_larger_than_the_store_is_refused_where_ranks_do_not_release():
    view = ledger(num_samples=100, num_ranks=1, room=800, spec={"validation_frac": 0.9}).view()
    assert view.state == "failed"
    assert "validate unit 0 (step 0): the share of rank-0 takes 9000 bytes" in view.reason
    assert view.reason.endswith("raise store.segment_gib, or set a lower validation.max_packs")


# -- what becomes of leases --------------------------------------------------------------------------------------------


def test_an_expired_lease_goes_back_and_its_late_answer_is_not_wanted():
    made = ledger()
    (lease,) = made.lease("e", 1, 10, 0)
    assert made.expire(59.9) == 0
    assert made.expire(60) == 1
    (again,) = made.lease("f", 1, 10, 60)
    assert (again.sample, again.attempt) == (lease.sample, 2)
    assert again.key != lease.key
    assert lease.key in put(made, [lease], "e", 61)
    assert put(made, [again], "f", 62) == []
    assert made.view().ready == 1


def test_a_repeated_answer_does_not_have_the_object_in_use_removed():
    made = ledger()
    leases = fill(made, 3)
    assert put(made, leases) == []
    assert len(made.take("rank-0", 0).samples) == 3
    assert put(made, leases) == []
    assert made.report("e", [], [Lost(leases[0].key, "confused")], 0) == []
    assert made.view().taken == 3


def test_an_unknown_key_is_not_wanted():
    assert ledger().report("e", [Ready("run/0/0-0-0-1", 100)], [Lost("other", "?")], 0) == ["run/0/0-0-0-1", "other"]


def test_an_object_of_the_wrong_size_is_not_accepted():
    made = ledger(max_failed_frac=0, max_attempts=1)
    (lease,) = made.lease("e", 1, 10, 0)
    made.report("e", [Ready(lease.key, 99)], [], 0)
    assert "e put 99 bytes where 100 were expected" in made.view().reason


def test_a_lost_sample_is_leased_again_before_anything_later():
    made = ledger()
    leases = made.lease("e", 20, 10**9, 0)
    made.report("e", [], [Lost(leases[7].key, "HTTP 500")], 0)
    again = made.lease("f", 2, 100, 0)
    assert again[0].sample == leases[7].sample
    assert places(again) == [places(leases)[7], (1, 1, 0)]


def test_dropping_an_engine_returns_its_leases_in_schedule_order():
    made = ledger()
    first, other, second = (made.lease(name, 4, 100, 0) for name in ("a", "b", "a"))
    assert made.drop_engine("a", 1) == 8
    again = made.lease("b", 8, 100, 1)
    assert [lease.sample for lease in again] == [lease.sample for lease in first + second]
    assert made.view().leased_by == {"b": 12}
    assert put(made, other, "b") == []


def test_a_key_given_up_is_removed_only_when_its_engine_can_no_longer_put():
    made = ledger()
    (lease,) = made.lease("a", 1, 10, 0)
    made.drop_engine("a", 5)
    assert made.report("b", [], [], 64.9) == []
    assert made.report("b", [], [], 65) == [lease.key]
    assert made.report("b", [], [], 66) == []


# -- failures ----------------------------------------------------------------------------------------------------------


def test_a_sample_is_masked_after_its_last_attempt():
    made = ledger(max_attempts=3)
    for _ in range(3):
        (lease,) = made.lease("e", 1, 10, 0)
        made.report("e", [], [Lost(lease.key, "HTTP 500")], 0)
    reply = made.take("rank-0", 0)
    assert (reply.failed, reply.complete) == (((0, 0),), False)
    (failed,) = made.pop_failures()
    assert (failed.sample, failed.unit, failed.reason) == (lease.sample, 0, "e: HTTP 500")
    assert made.pop_failures() == []
    fill(made, 15)
    assert [reply.complete for reply in take_all(made, 0)] == [True, True]
    assert made.commit(0, 1)
    assert (made.view().trained, made.view().failed) == (15, 1)


def test_wrong_data_found_by_ranks_burns_attempts_too():
    made = ledger(max_attempts=2)
    for _ in range(2):
        fill(made, 1)
        (taken,) = made.take("rank-0", 0).samples
        assert made.lost("rank-0", [Lost(taken.key, "constant")], 0) == 1
    assert made.pop_failures()[0].reason == "rank-0: constant"


def test_dead_engines_burn_no_attempt_but_not_for_ever():
    made = ledger(max_attempts=2)
    for dead in range(7):
        made.lease(f"e{dead}", 1, 10, 0)
        made.drop_engine(f"e{dead}", 0)
    assert made.view().failed == 0
    made.lease("last", 1, 10, 0)
    made.drop_engine("last", 0)
    assert made.view().failed == 1
    assert "8 engines died or fell silent with it" in made.pop_failures()[0].reason


def test_a_segment_that_takes_nothing_burns_no_attempt_but_not_for_ever():
    made = ledger(max_attempts=2)
    for _ in range(8):
        assert made.view().failed == 0
        (lease,) = made.lease("e", 1, 10, 0)
        made.report("e", [], [Lost(lease.key, "segment s took nothing", is_unreachable=True)], 0)
    assert made.view().failed == 1
    assert "segment s took nothing" in made.pop_failures()[0].reason


def test_a_lease_that_runs_out_burns_an_attempt_only_if_its_engine_lives():
    made = ledger(max_attempts=1)
    (silent,) = made.lease("silent", 1, 10, 0)
    (stuck,) = made.lease("alive", 1, 10, 0)
    made.report("alive", [], [], 30)
    made.expire(60)
    assert [failed.sample for failed in made.pop_failures()] == [stuck.sample]
    assert made.lease("alive", 1, 10, 60)[0].sample == silent.sample


def test_too_many_failures_end_the_run_at_the_boundary_with_the_last_reason():
    made = ledger(max_attempts=1, max_failed_frac=0.001)
    for _ in range(2):
        (lease,) = made.lease("e", 1, 10, 0)
        made.report("e", [], [Lost(lease.key, "HTTP 500")], 0)
    view = made.view()
    assert view.state == "failed"
    assert "2 samples failed after 1 attempts each, more than ledger.max_failed_frac (0.001) of 1000" in view.reason
    assert "HTTP 500" in view.reason
    assert made.take("rank-0", 0) == TakeReply("stop")
    assert made.lease("e", 1, 10, 0) == []


# -- taking and committing ---------------------------------------------------------------------------------------------


def test_each_rank_is_handed_its_own_share_once():
    made = ledger()
    fill(made, 10)
    first, second = take_all(made, 0)
    assert [(s.pack, s.piece) for s in first.samples] == [(0, i) for i in range(4)] + [(1, i) for i in range(4)]
    assert [(s.pack, s.piece) for s in second.samples] == [(2, 0), (2, 1)]
    assert (first.complete, second.complete) == (True, False)
    assert take_all(made, 0)[0].samples == ()
    fill(made, 6)
    assert len(made.take("rank-1", 0).samples) == 6
    assert made.take("rank-1", 0).complete


def test_a_rank_without_a_pack_is_complete_at_once():
    made = ledger(num_ranks=5)
    assert [made.take(f"rank-{r}", 0).complete for r in range(5)].count(True) == 1


def test_only_the_next_unit_of_the_present_generation_handed_out_completely_is_committed():
    made = ledger()
    fill(made, 40)
    assert not made.commit(0, 1)
    take_all(made, 0)
    take_all(made, 1)
    assert not made.commit(1, 1)
    assert not made.commit(0, 0)
    assert not made.commit(0, 2)
    assert made.commit(0, 1)
    assert not made.commit(0, 1)
    assert made.was_committed(0, 1)
    assert not made.was_committed(0, 2)
    assert made.commit(1, 1)
    assert made.view().trained == 32


def test_a_rank_that_asks_for_a_committed_unit_or_is_not_in_the_group_must_regroup():
    made = ledger()
    fill(made)
    take_all(made, 0)
    made.commit(0, 1)
    assert made.take("rank-0", 0).kind == "regroup"
    assert made.take("rank-9", 1).kind == "regroup"
    assert made.take("rank-0", 1, generation=0).kind == "regroup"
    assert made.take("rank-0", 1, generation=1).kind == "samples"


def test_the_end_of_the_schedule_is_told_to_ranks_and_engines():
    made = ledger(num_samples=16, spec={"validation_frac": 0.0})
    fill(made)
    take_all(made, 0)
    assert made.lease("e", 1, 100, 0) == []
    assert made.take("rank-0", 1).kind == "done"
    assert made.commit(0, 1)
    view = made.view()
    assert (view.state, view.step, view.trained) == ("done", 1, 16)
    assert (view.planned, view.leased, view.ready, view.taken, view.resident_bytes) == (0, 0, 0, 0, 0)


def test_counts_begin_after_what_was_trained_before_a_resume():
    view = ledger(first_unit=4).view()
    assert (view.unit, view.step, view.trained, view.planned) == (4, 4, 64, 96)


def test_tokens_are_counted_for_the_engine_that_made_them():
    made = ledger()
    fill(made, 3, "a")
    fill(made, 2, "b")
    assert made.view().done_tokens_by == {"a": 30, "b": 20}


# -- stopping ----------------------------------------------------------------------------------------------------------


def test_a_stop_lies_past_the_last_unit_that_any_rank_was_given_completely():
    made = ledger()
    fill(made, 24)
    made.take("rank-0", 1)
    assert made.announce_stop(now=False) == 2
    assert made.view().state == "stopping"
    fill(made)
    assert made.view().ready + made.view().taken == 32
    for unit in (0, 1):
        assert all(reply.complete for reply in take_all(made, unit))
        assert made.commit(unit, 1)
    assert made.view().state == "stopped"
    assert made.take("rank-0", 2) == TakeReply("stop", now=False)


def test_a_stop_with_nothing_given_lies_at_the_next_unit():
    made = ledger()
    fill(made, 4)
    made.take("rank-0", 0)
    assert made.announce_stop(now=True) == 0
    assert made.take("rank-0", 0) == TakeReply("stop", now=True)
    assert made.view().state == "stopped"
    assert made.announce_stop(now=False) == 0


def test_a_stop_in_the_last_unit_ends_as_done():
    made = ledger(num_samples=16)
    fill(made)
    take_all(made, 0)
    assert made.announce_stop(now=False) == 1
    assert made.take("rank-0", 1).kind == "done"
    made.commit(0, 1)
    assert made.view().state == "done"


# -- regrouping --------------------------------------------------------------------------------------------------------


def test_a_new_group_keeps_what_lies_in_a_segment_that_still_trains_it():
    made = ledger()
    fill(made, 16)
    leased = made.lease("e", 2, 100, 0)
    old = take_all(made, 0)
    assert made.set_group([*members(1), Member("rank-2", "host-2:1", ROOM)], 2) == 0
    view = made.view()
    assert (view.ready, view.leased, view.taken, view.regenerated) == (8, 2, 0, 8)
    assert {s.key for s in made.take("rank-0", 0).samples} == {s.key for s in old[0].samples}
    assert not {lease.key for lease in leased} & set(put(made, leased))
    assert made.take("rank-2", 0).samples == ()
    again = made.lease("e", 8, 10**9, 0)
    assert {lease.segment for lease in again} == {"host-2:1"}
    assert {lease.unit for lease in again} == {0}


def test_keys_of_objects_nobody_trains_any_more_are_handed_to_an_engine_for_removal():
    made = ledger()
    leases = fill(made, 16)
    made.set_group([Member("rank-7", "host-7:1", ROOM)], 2)
    assert sorted(made.report("e", [], [], 0)) == sorted(lease.key for lease in leases)


def test_a_new_group_always_has_room_for_the_unit_in_training():
    made = ledger(room=1600)
    fill(made)
    made.set_group(members(1, room=1600), 2)
    fill(made)
    assert made.take("rank-0", 0).complete
    assert made.view().resident_bytes <= 1600


def test_an_older_generation_may_not_set_the_group():
    made = ledger()
    made.set_group(members(1), 5)
    with pytest.raises(ValueError, match="generation 4 is older than 5"):
        made.set_group(members(2), 4)


def test_a_commit_of_an_older_generation_is_fenced():
    made = ledger()
    fill(made)
    take_all(made, 0)
    made.set_group(members(2), 2)
    assert not made.commit(0, 1)
    assert not made.commit(0, 2)
    take_all(made, 0)
    assert made.commit(0, 2)
