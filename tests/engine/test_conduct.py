"""When an engine is given up: a table of what became of its requests, on a clock of the test's own."""

import pytest

from dspark_train.engine.conduct import Conduct, Rule, verdict

RULE = Rule(request_timeout_s=50.0, silence_s=120.0)
# What happens: (at_s, event, sample, begun_s). The ledger answers with every event unless it is "silence".


def judge(*events: tuple[float, str, int, float], rule: Rule = RULE) -> str:
    """The verdict after the last event, at its time."""
    conduct, now_s = Conduct(success_s=0.0, heard_s=0.0), 0.0
    for now_s, event, sample, begun_s in events:
        if event == "silence":
            continue
        conduct = conduct.heard(now_s)
        if event == "success":
            conduct = conduct.succeeded(now_s)
        elif event == "answered":
            conduct = conduct.answered()
        else:
            conduct = conduct.lost(sample, event, "r", begun_s, now_s)
    return verdict(rule, conduct, now_s)


@pytest.mark.parametrize(
    ("events", "wanted"),
    [
        ([(1, "success", 0, 0)], ""),
        # hangs
        ([(50, "timeout", 0, 0)], ""),
        ([(50, "timeout", 0, 0), (50, "timeout", 1, 0)], "hung: nothing for 50 s, 2 requests in a row timed out"),
        ([(50, "timeout", 0, 0), (102, "timeout", 0, 52)], "hung: nothing for 102 s"),
        ([(50, "timeout", 0, 0), (50.1, "success", 1, 0), (60, "timeout", 2, 10)], ""),
        ([(50, "timeout", 0, 0), (50.1, "alive", 1, 0), (60, "timeout", 2, 10)], ""),
        ([(50, "timeout", 0, 0), (51, "answered", 1, 0), (60, "timeout", 1, 10)], "hung"),
        ([(9, "timeout", 0, 0), (10, "timeout", 1, 0)], ""),
        ([(50, "", 0, 0), (50, "", 1, 0), (50, "", 2, 0)], ""),
        # Two that never arrive are no hang while others do; but it is one once nothing has come for as long.
        ([(49, "success", 2, 48), (50, "timeout", 0, 0), (50, "timeout", 1, 0)], ""),
        (
            [(49, "success", 2, 48), (50, "timeout", 0, 0), (50, "timeout", 1, 0), (99, "silence", 0, 0)],
            "hung: nothing for 50 s",
        ),
        # errors
        ([(1, "refused", 0, 0), (2, "refused", 1, 0), (40, "refused", 2, 39)], ""),
        ([(1, "refused", 0, 0), (51, "refused", 1, 50)], "fails: nothing but errors for 50 s, 2 in a row; last: r"),
        ([(1, "refused", 0, 0), (30, "answered", 1, 29), (51, "refused", 1, 50)], ""),
        # lies
        ([(1, "wrong", 0, 0), (2, "wrong", 1, 0)], ""),
        ([(1, "wrong", 0, 0), (2, "wrong", 1, 0), (3, "wrong", 2, 0)], "lies: 3 different samples in a row"),
        ([(1, "wrong", 0, 0), (2, "wrong", 0, 0), (3, "wrong", 0, 0)], ""),
        ([(1, "wrong", 0, 0), (2, "wrong", 1, 0), (2.5, "success", 5, 0), (3, "wrong", 2, 0)], ""),
        # cut off
        ([(1, "success", 0, 0), (120, "silence", 0, 0)], ""),
        ([(1, "success", 0, 0), (121, "silence", 0, 0)], "cut off from the ledger for 120 s"),
    ],
)
def test_an_engine_is_given_up_for_what_it_did_and_for_nothing_else(events, wanted):
    found = judge(*events)
    assert found.startswith(wanted)
    assert bool(found) == bool(wanted)


def test_a_success_forgives_everything_but_the_count():
    conduct = Conduct(success_s=0.0, heard_s=7.0)
    for sample, blame in enumerate(("timeout", "refused", "wrong", "")):
        conduct = conduct.lost(sample, blame, "r", 0.0, 1.0)
    assert conduct.succeeded(9.0) == Conduct(success_s=9.0, heard_s=7.0, num_lost=4)
