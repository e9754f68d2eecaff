import time
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspark_train.errors import DataError
from dspark_train.schedule.steps import Schedule, ScheduleSpec

SEQ_LEN = 64


def schedule(lengths=(40,) * 30, **kwargs):
    settings = {"seq_len": SEQ_LEN, "step_packs": 4, "seed": 1, "max_steps": 5} | kwargs
    return Schedule(ScheduleSpec(lengths_tokens=np.array(lengths, dtype=np.int64), **settings))


def units(made):
    return [made.unit(index) for index in range(made.num_units)]


def samples(unit):
    return [piece.sample for pack in unit.packs for piece in pack.pieces]


@st.composite
def specs(draw):
    ends = draw(st.sampled_from([(True, False), (False, True), (True, True)]))
    return ScheduleSpec(
        lengths_tokens=np.array([*draw(st.lists(st.integers(0, 2 * SEQ_LEN), max_size=40)), 30]),
        seq_len=SEQ_LEN,
        step_packs=draw(st.integers(1, 6)),
        seed=draw(st.integers(0, 2**63 - 1)),
        max_steps=draw(st.integers(1, 30)) if ends[0] else None,
        epochs=draw(st.integers(1, 4)) if ends[1] else None,
        validation_frac=draw(st.sampled_from([0.0, 0.1, 0.5])),
        validate_every_steps=draw(st.integers(1, 8)),
        max_validation_packs=draw(st.none() | st.integers(1, 3)),
    )


@given(specs())
def test_every_sample_is_trained_exactly_once_an_epoch(spec):
    made = Schedule(spec)
    packs = [pack for unit in units(made) if unit.kind == "train" for pack in unit.packs]
    held = {piece.sample for pack in made.validation_packs for piece in pack.pieces}
    by_epoch: dict[int, Counter[int]] = {}
    for pack in packs:
        by_epoch.setdefault(pack.epoch, Counter()).update(piece.sample for piece in pack.pieces)
    assert list(by_epoch) == sorted(by_epoch)
    full = [by_epoch[epoch] for epoch in sorted(by_epoch)[:-1]]
    if spec.epochs is not None and spec.max_steps is None:
        full.append(by_epoch[spec.epochs - 1])
        assert len(by_epoch) == spec.epochs
    with_tokens = {row for row, length in enumerate(spec.lengths_tokens) if length}
    for counted in full:
        assert set(counted.values()) == {1}
        assert set(counted) <= with_tokens - held
        if spec.max_validation_packs is None:
            assert set(counted) == with_tokens - held
    for counted in by_epoch.values():
        assert set(counted.values()) == {1}


@given(specs())
def test_steps_are_full_but_for_the_last_and_come_in_order(spec):
    made = Schedule(spec)
    trained = [unit for unit in units(made) if unit.kind == "train"]
    assert [unit.step for unit in trained] == list(range(1, made.num_steps + 1))
    assert all(len(unit.packs) == spec.step_packs for unit in trained[:-1])
    assert 1 <= len(trained[-1].packs) <= spec.step_packs
    if spec.max_steps is not None:
        assert made.num_steps <= spec.max_steps
        if spec.epochs is None:
            assert made.num_steps == spec.max_steps


@given(specs())
def test_validation_stands_before_the_first_step_after_every_n_and_after_the_last_once(spec):
    made = Schedule(spec)
    order = [(unit.kind, unit.step) for unit in units(made)]
    expected = [("validate", 0)] if made.validation_packs else []
    for step in range(1, made.num_steps + 1):
        expected.append(("train", step))
        if made.validation_packs and (step % spec.validate_every_steps == 0 or step == made.num_steps):
            expected.append(("validate", step))
    assert order == expected


@given(specs())
def test_indices_steps_and_resume_points_agree(spec):
    made = Schedule(spec)
    everything = units(made)
    assert [unit.index for unit in everything] == list(range(made.num_units))
    for unit in everything:
        if unit.kind == "train":
            assert made.unit_of_step(unit.step) == unit.index
            assert made.epoch_of_step(unit.step) == unit.epoch == unit.packs[0].epoch
    for step in range(made.num_steps + 1):
        later = [unit.index for unit in everything if unit.step > step]
        rounds = [unit.index for unit in everything if unit.step == step and unit.kind == "validate"]
        assert made.first_unit_after_step(step) == (later[0] if later else made.num_units)
        assert made.first_unit_after_step(step, validated=False) == (rounds or [made.first_unit_after_step(step)])[0]
        assert made.validates_after(step) == bool(rounds)
    assert made.first_unit_after_step(made.num_steps + 1) == made.num_units


@given(specs())
def test_samples_before_a_unit_are_those_of_the_units_before_it(spec):
    made = Schedule(spec)
    total = 0
    for unit in units(made):
        assert made.num_samples_before(unit.index) == total
        total += len(samples(unit))
    assert made.num_samples_before(made.num_units) == total


@given(specs(), st.randoms(use_true_random=False))
def test_a_unit_is_the_same_in_whatever_order_it_is_asked_for(spec, random):
    expected = units(Schedule(spec))
    made = Schedule(spec)
    indices = list(range(made.num_units))
    random.shuffle(indices)
    assert {index: made.unit(index) for index in indices} == dict(enumerate(expected))


def test_a_unit_beyond_the_last_is_an_index_error():
    made = schedule()
    with pytest.raises(IndexError):
        made.unit(made.num_units)


def test_the_split_follows_from_the_seed_not_from_the_run_length():
    held = [
        next(samples(unit) for unit in units(made) if unit.kind == "validate")
        for made in (
            schedule(validation_frac=0.2, max_steps=3),
            schedule(validation_frac=0.2, max_steps=None, epochs=2, step_packs=3),
        )
    ]
    assert held[0] == held[1]
    assert len(held[0]) == 6
    other = schedule(validation_frac=0.2, seed=2)
    assert sorted(samples(other.unit(0))) != sorted(held[0])


def test_epochs_are_shuffled_anew():
    made = schedule(max_steps=None, epochs=2, step_packs=1)
    orders = [[s for unit in units(made) if unit.epoch == epoch for s in samples(unit)] for epoch in (0, 1)]
    assert sorted(orders[0]) == sorted(orders[1])
    assert orders[0] != orders[1]


def test_a_step_may_span_several_epochs_of_a_tiny_data_set():
    made = schedule(lengths=[60, 60], step_packs=5, max_steps=2)
    assert [[pack.epoch for pack in made.unit(i).packs] for i in range(2)] == [[0, 0, 1, 1, 2], [2, 3, 3, 4, 4]]


@pytest.mark.parametrize("lengths", [[], [0, 0]])
def test_a_data_set_without_tokens_is_refused(lengths):
    with pytest.raises(DataError, match="has no sample with tokens"):
        schedule(lengths=lengths)


def test_a_schedule_without_an_end_is_refused():
    with pytest.raises(ValueError, match="max_steps or epochs"):
        schedule(max_steps=None)


def test_a_long_run_is_not_laid_out_before_it_is_asked_for():
    lengths = np.random.default_rng(0).integers(8, SEQ_LEN, 20_000)
    began = time.process_time()
    made = schedule(lengths=lengths, max_steps=10_000_000, validation_frac=0.01, step_packs=32)
    assert made.num_steps == 10_000_000
    assert made.unit(1).step == 1
    assert time.process_time() - began < 1
