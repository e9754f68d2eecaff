"""Everything that can happen to samples, in any order: found and shrunk by hypothesis, and in long lives by a seed."""

import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.schedule.ledger_model import EVENTS, SEQ_LEN, Model

NAMES = [name for name, (weight, _) in EVENTS.items() for _ in range(weight)]


class LedgerMachine(RuleBasedStateMachine):
    """Any events in any order, then the run is let finish."""

    model: Model | None = None

    @initialize(
        lengths=st.lists(st.integers(1, 2 * SEQ_LEN), min_size=1, max_size=30),
        num_ranks=st.integers(1, 5),
        tightness=st.floats(1.0, 3.0),
        step_packs=st.integers(1, 4),
        epochs=st.integers(1, 2),
        validation_frac=st.sampled_from([0.0, 0.2]),
        every=st.integers(1, 4),
        seed=st.integers(0, 1000),
    )
    def begin(self, **kwargs):
        self.model = Model(**kwargs)

    @rule(name=st.sampled_from(NAMES), data=st.data())
    def event(self, name, data):
        EVENTS[name][1](self.model, lambda choices: data.draw(st.sampled_from(choices)))

    @invariant()
    def holds(self):
        if self.model is not None:
            self.model.check()

    def teardown(self):
        if self.model is not None:
            self.model.finish()


LedgerMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)
TestLedger = LedgerMachine.TestCase


@pytest.mark.parametrize("seed", range(40))
def test_every_sample_is_trained_once_an_epoch_whatever_happens_in_a_long_life(seed):
    dice = random.Random(seed)
    model = Model(
        lengths=[dice.randint(1, 2 * SEQ_LEN) for _ in range(dice.randint(1, 60))],
        num_ranks=dice.randint(1, 5),
        tightness=dice.uniform(1, 3),
        step_packs=dice.randint(1, 4),
        epochs=dice.randint(1, 3),
        validation_frac=dice.choice([0.0, 0.2]),
        every=dice.randint(1, 4),
        seed=seed,
    )
    for _ in range(150):
        EVENTS[dice.choice(NAMES)][1](model, dice.choice)
        model.check()
    model.finish()
