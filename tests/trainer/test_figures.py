"""How many tokens a pass yields, out of what each kind of draft tells."""

import pytest

from dspark_train.trainer.figures import accept_len

pytestmark = pytest.mark.torch


@pytest.mark.parametrize(
    ("figures", "expected"),
    [
        ({"accept_len": 2.5, "eal": 2.1, "position_0_acc": 0.9}, 2.5),
        ({"eal": 2.1, "position_1_acc": 0.9}, 2.1),
        ({"full_acc_0": 0.5, "full_acc_1": 0.25, "cond_acc_1": 0.5}, 1.75),
        ({"full_acc": 0.4, "position_0_acc": 0.5, "position_1_acc": 0.5}, 1.75),
        ({"loss": 3.0}, 1.0),
        ({}, 1.0),
    ],
)
def test_the_acceptance_length_is_the_best_known_of_what_a_model_tells(figures, expected):
    assert accept_len(figures) == pytest.approx(expected)
