"""What is made of measurements: medians, ratios by pairs, rates; and the table they are printed in."""

import pytest

from dspark_train.bench.spread import Spread, ratios
from dspark_train.bench.start_phases import start_phases
from dspark_train.cli.bench import What, table


def test_a_spread_is_the_median_and_the_ends():
    assert Spread.of([3.0, 1.0, 2.0]) == Spread(2.0, 1.0, 3.0)
    assert Spread.of([1.0, 2.0]).median == 1.5


def test_a_machine_that_slows_both_of_a_pair_does_not_change_the_ratio():
    assert ratios([8.0, 4.0, 6.0], [2.0, 1.0, 2.0]) == Spread(4.0, 3.0, 4.0)
    with pytest.raises(ValueError, match="shorter"):
        ratios([1.0, 2.0], [1.0])


JOURNAL = """
{"at": "2026-11-30T04:00:00.000Z", "kind": "run.starting", "who": "controller", "text": ""}
{"at": "2026-11-30T04:00:09.000Z", "kind": "run.flowing", "who": "controller", "text": ""}
{"at": "2026-11-30T05:00:00.000Z", "kind": "run.starting", "who": "controller", "text": ""}
{"at": "2026-11-30T05:00:00.500Z", "kind": "store.ready", "who": "master", "text": ""}
{"at": "2026-11-30T05:00:04.000Z", "kind": "rank.ready", "who": "rank-0", "text": ""}
{"at": "2026-11-30T05:00:06.000Z", "kind": "rank.ready", "who": "rank-1", "text": ""}
{"at": "2026-11-30T05:00:05.000Z", "kind": "engine.started", "who": "engine-1.0", "text": ""}
{"at": "2026-11-30T05:00:07.250Z", "kind": "run.flowing", "who": "controller", "text": ""}
{"at": "2026-11-30T06:00:00.000Z", "kind": "rank.ready", "who": "rank-0", "text": ""}
""".strip().splitlines()


def test_the_last_start_of_a_run_is_told_phase_by_phase_up_to_its_flow():
    told = start_phases(JOURNAL)
    assert told["total_s"] == 7.25
    assert [(phase["at_s"], phase["took_s"]) for phase in told["phases"]] == [
        (0.5, 0.5),
        (5.0, 4.5),
        (6.0, 1.0),
        (7.25, 1.25),
    ]
    lines = list(table(What.start, told))
    assert lines[-1].split() == ["total", "7.25", "s"]
    assert len({len(line) for line in lines}) == 1


def test_a_start_that_did_not_end_and_a_journal_without_one_have_no_total():
    assert start_phases(JOURNAL[2:4]) == {
        "phases": [{"phase": "store's master", "at_s": 0.5, "took_s": 0.5}],
        "total_s": None,
    }
    assert start_phases([]) == {"phases": [], "total_s": None}


def test_figures_are_printed_with_their_units_and_lists_are_left_to_the_json():
    figures = {"ours_bytes_per_s": 6.5e9, "ours_cpu_s_per_gb": 0.25, "pack_bytes": 128 * 2**20, "pairs": [{}], "x": 0.5}
    printed = [line.split() for line in table(What.ingest, figures)]
    assert printed == [["ours", "6.50", "GB/s"], ["ours", "cpu", "0.250", "s/GB"], ["pack", "128", "MiB"], ["x", "0.5"]]
