"""`dspark-train bench`: what it refuses, and what it prints of a run's start."""

import json

import pytest

from dspark_train.cli.app import run

JOURNAL = (
    '{"at": "2026-11-30T05:00:00.000Z", "kind": "run.starting", "who": "controller", "text": ""}\n'
    '{"at": "2026-11-30T05:00:02.000Z", "kind": "run.flowing", "who": "controller", "text": ""}\n'
)


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (["pipeline"], "needs --topology"),
        (["peer"], "needs --topology"),
        (["memory"], "needs --topology"),
        (["ledger", "a1"], "takes no run"),
        (["speed"], "speed"),
    ],
)
def test_what_cannot_be_measured_is_refused_as_bad_usage(args, text, capsys):
    assert run(["bench", *args]) == 2
    assert text in capsys.readouterr().err


def test_the_start_of_a_run_is_told_from_its_files(tmp_path, capsys):
    root = tmp_path / "a1"
    root.mkdir()
    (root / "resolved.json").write_text("{}")
    (root / "events.jsonl").write_text(JOURNAL)
    assert run(["bench", "start", str(root), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["total_s"] == 2.0
    assert run(["bench", "start", str(root)]) == 0
    assert "2.00 s" in capsys.readouterr().out
