"""Which changes a resumed run may have."""

import pytest

from dspark_train.controller.resume import check_resumable
from dspark_train.errors import UsageError
from dspark_train.topology.facts import TargetFacts
from dspark_train.topology.load import load
from dspark_train.topology.resolve import resolve


def resolved(*overrides):
    return resolve(load("topologies/quickstart.yaml", overrides), TargetFacts())


@pytest.mark.parametrize("change", ["run.max_steps=90", "trainers.ranks.start=1", "engines.count.start=2"])
def test_counts_and_length_may_change(change):
    check_resumable(resolved(), resolved(change))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("data.step_packs=8", "data.step_packs: 2 in the run, 8 now"),
        ("run.seed=1", "run.seed: 42 in the run, 1 now"),
        ("data.seq_len=256", "data.seq_len: 512 in the run, 256 now"),
    ],
)
def test_what_changes_the_steps_is_refused_by_name(change, told):
    with pytest.raises(UsageError, match=told):
        check_resumable(resolved(), resolved(change))
