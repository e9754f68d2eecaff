"""What the command line says of a live run."""

from pathlib import Path

import pytest

from dspark_train.cli import app, page
from dspark_train.errors import UsageError


@pytest.fixture
def said(run, monkeypatch, capsys):
    monkeypatch.setenv("DSPARK_RUNS", str(run.layout.root.parent))
    monkeypatch.setenv("COLUMNS", "80")

    def saying(*args):
        code = app.run(list(args))
        return code, capsys.readouterr()

    return saying


def test_status_fits_80_columns_says_when_it_ends_and_where_the_page_is_but_not_the_token(run, said):
    run.until(lambda: run.state.step > 3)
    code, out = said("status", "a1")
    assert code == 0
    assert max(map(len, out.out.splitlines())) <= 80
    assert " left" in out.out
    assert "dspark-train page a1" in out.out
    assert run.token not in out.out + out.err


def test_the_page_command_prints_the_whole_link_for_the_runs_owner(run, said):
    code, out = said("page", "a1")
    assert (code, out.out) == (0, f"{run.url}/#token={run.token}\n")
    assert run.token not in out.err


def test_whoever_cannot_read_the_token_gets_no_link(monkeypatch, tmp_path):
    def refused(*_, **__):
        raise PermissionError

    monkeypatch.setattr(Path, "read_text", refused)
    with pytest.raises(UsageError, match="owner only"):
        page._token(tmp_path / "token")


def test_a_report_can_be_had_while_the_run_goes_on(run, said):
    run.until(lambda: run.state.step > 3)
    code, out = said("report", "a1")
    assert code == 0
    assert out.out.splitlines() == [str(run.layout.report), str(run.layout.report_plots)]
