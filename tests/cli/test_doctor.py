"""`doctor` ends with what it found."""

from __future__ import annotations

import json

import pytest

from dspark_train.cli import app
from dspark_train.cluster import machine_checks, rack_rules, software_checks
from dspark_train.cluster.checks import Check, Outcome, Status


def let_find(monkeypatch: pytest.MonkeyPatch, status: Status) -> None:
    check = Check("disk", lambda need: Outcome(status, "[red]1 GiB[/red] free"), "free some")
    monkeypatch.setattr(software_checks, "SOFTWARE_CHECKS", ())
    monkeypatch.setattr(machine_checks, "MACHINE_CHECKS", (check,))
    monkeypatch.setattr(rack_rules, "MACHINE_RULES", ())


@pytest.mark.parametrize(("status", "code"), [("ok", 0), ("warning", 0), ("failed", 1)])
def test_the_exit_code_says_whether_something_failed(
    status: Status, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    let_find(monkeypatch, status)
    assert app.run(["doctor", "--json"]) == code
    told = json.loads(capsys.readouterr().out)
    remedy = "" if status == "ok" else "free some"
    assert told == {
        "fit": code == 0,
        "checks": [{"check": "disk", "status": status, "text": "[red]1 GiB[/red] free", "remedy": remedy}],
    }


def test_the_table_shows_what_was_found_and_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    let_find(monkeypatch, "failed")
    assert app.run(["doctor"]) == 1
    out = capsys.readouterr().out
    assert "[red]1 GiB[/red] free" in out
    assert "free some" in out
    assert "1 of 1 checks need attention" in out
