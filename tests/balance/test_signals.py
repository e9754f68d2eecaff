import pytest

from dspark_train.balance.signals import BottleneckRule, Rate, bottleneck


@pytest.mark.parametrize(
    ("engines", "ranks", "expected"),
    [
        (0.0, 0.5, "inference"),
        (0.5, 0.0, "trainers"),
        (0.5, 0.5, "link"),
        (0.0, 0.0, None),
        (0.09, 0.1, "inference"),
        (0.1, 0.09, "trainers"),
        (None, 0.9, None),
        (0.9, None, None),
        (None, None, None),
    ],
)
def test_whoever_does_not_wait_holds_up_the_one_who_does(engines, ranks, expected):
    assert bottleneck(engine_blocked_frac=engines, rank_blocked_frac=ranks) == expected


def test_the_threshold_is_the_rule_s():
    strict = BottleneckRule(waiting_frac=0.5)
    assert bottleneck(engine_blocked_frac=0.4, rank_blocked_frac=0.6, rule=strict) == "inference"


def test_a_rate_is_growth_over_the_window():
    rate = Rate(window_s=10)
    for second in range(31):
        rate.observe(second, 100 * second if second <= 20 else 2000 + 10 * (second - 20))
    assert rate.per_s(30) == 10


def test_a_rate_is_not_known_from_one_moment():
    rate = Rate(window_s=10)
    assert rate.per_s(5) is None
    rate.observe(5, 100)
    assert rate.per_s(6) is None
    rate.observe(7, 300)
    assert rate.per_s(7) == 100


def test_a_rate_falls_while_nothing_is_heard():
    rate = Rate(window_s=10)
    rate.observe(0, 0)
    rate.observe(2, 100)
    assert rate.per_s(2) == 50
    assert rate.per_s(5) == 20
    assert rate.per_s(100) is None


def test_a_restarted_counter_is_not_a_negative_rate():
    rate = Rate(window_s=10)
    rate.observe(0, 0)
    rate.observe(1, 500)
    rate.observe(2, 10)
    assert rate.per_s(2) is None
    rate.observe(3, 30)
    assert rate.per_s(3) == 20
