"""Errors become exit codes and `error:` lines in one place; help is instant and imports nothing heavy."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dspark_train.cli import app, runs
from dspark_train.errors import DSparkError, FileProblems, Problem, Unreachable
from dspark_train.plan.run_layout import RunLayout
from dspark_train.report import state_file
from dspark_train.report.state import PoolState, RunState


def stand_in(monkeypatch: pytest.MonkeyPatch, command: Any) -> None:
    """Let `status` be ``command``."""
    monkeypatch.setitem(sys.modules, "dspark_train.cli.status", SimpleNamespace(command=command))


def raising(error: BaseException) -> Any:
    def command() -> None:
        raise error

    return command


PROBLEMS = FileProblems([Problem("a.yaml", 3, "x.y", "is wrong", "fix it"), Problem("a.yaml", 0, "", "bad", "mend it")])


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (DSparkError("the store failed\n  last lines: x"), 1, "error: the store failed\n  last lines: x\n"),
        (PROBLEMS, 2, "error: a.yaml:3: x.y is wrong: fix it\nerror: a.yaml: bad: mend it\n"),
        (Unreachable("nobody answers"), 5, "error: nobody answers\n"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_an_error_ends_with_its_exit_code_and_no_traceback(
    error: BaseException, code: int, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stand_in(monkeypatch, raising(error))
    assert app.run(["status"]) == code
    assert capsys.readouterr().err == message


def test_an_error_of_ours_leaves_its_traceback_in_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def command() -> None:
        runs.remember(RunLayout(tmp_path))
        raise KeyError("lost")

    stand_in(monkeypatch, command)
    assert app.run(["status"]) == 3
    error = capsys.readouterr().err
    assert error.startswith("error: KeyError: 'lost': this is a bug of dspark-train")
    assert str(tmp_path / "traceback.txt") in error
    assert "Traceback" not in error
    assert "in command" in (tmp_path / "traceback.txt").read_text()


def test_an_error_of_ours_without_a_run_leaves_its_traceback_in_a_temporary_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    stand_in(monkeypatch, raising(ZeroDivisionError("x")))
    runs.remember(RunLayout(tmp_path / "gone"))
    assert app.run(["status"]) == 3
    (written,) = tmp_path.glob("dspark-train-traceback-*.txt")
    assert str(written) in capsys.readouterr().err
    assert "ZeroDivisionError: x" in written.read_text()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["lunch"], "error: no such command: lunch: did you mean launch?\n  see `dspark-train --help`\n"),
        (["zzz"], "error: no such command: zzz: there are launch, plan, "),
        (["--versio"], "error: no such option: --versio: did you mean --version?"),
        (["events", "--folow"], "error: no such option: --folow: did you mean --follow?\n  see `dspark-train events"),
        (["events", "a", "b"], "error: got unexpected extra argument"),
        (["logs", "-n", "x"], "error: invalid value for '-n'"),
    ],
)
def test_a_typo_ends_with_2_and_says_what_was_meant(
    args: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert app.run(args) == 2
    assert capsys.readouterr().err.startswith(message)


def test_the_exit_code_of_a_command_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    import typer

    stand_in(monkeypatch, raising(typer.Exit(4)))
    assert app.run(["status"]) == 4


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert app.run(["--version"]) == 0
    assert re.fullmatch(r"dspark-train \d+\.\d+\.\d+\n", capsys.readouterr().out)


@pytest.mark.parametrize("args", [[], ["--help"]])
def test_help_names_every_command(args: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert app.run(args) == 0
    out = capsys.readouterr().out
    assert all(f"  {name} " in out and line in out for name, line in app.COMMANDS.items())


@pytest.mark.parametrize("name", app.COMMANDS)
def test_every_command_has_help_with_an_example(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert app.run([name, "--help"]) == 0
    assert f"Example: dspark-train {name}" in capsys.readouterr().out


def test_help_answers_in_half_a_second_and_imports_nothing_heavy() -> None:
    code = (
        "import sys; from dspark_train.cli.app import run; run(['--help']);"
        "print(sorted({m.partition('.')[0] for m in sys.modules}), file=sys.stderr)"
    )
    code += "; import time; print(time.process_time())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30)
    loaded = set(ast.literal_eval(done.stderr))
    assert not loaded & {"ray", "torch", "vllm", "transformers", "speculators", "mooncake", "numpy", "rich", "pydantic"}
    assert float(done.stdout.splitlines()[-1]) < 0.5  # of a core's time: other work on the machine is not our delay


def test_status_of_a_run_that_has_ended_imports_only_what_shows_it(tmp_path: Path) -> None:
    layout = RunLayout(tmp_path)
    layout.resolved.write_text("{}")
    state_file.write(layout.state, RunState(run="a1", state="done", pools={"inference": PoolState(desired=1)}))
    code = (
        "import sys; from dspark_train.cli.app import run; "
        f"assert run(['status', {str(tmp_path)!r}]) == 0;"
        "print(sorted(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30)
    assert "run a1  done" in done.stdout
    loaded = set(ast.literal_eval(done.stderr))
    assert not {name.partition(".")[0] for name in loaded} & {
        "ray",
        "torch",
        "vllm",
        "numpy",
        "httpx",
        "psutil",
        "yaml",
    }
    assert not loaded & {"http.client", "asyncio", "dspark_train.topology.schema", "rich._emoji_codes"}
