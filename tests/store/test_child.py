import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dspark_train.errors import StartError
from dspark_train.store.child import ChildProcess, describe, find_program
from dspark_train.store.tether import group_alive

DEADLINE_S = 20.0
# Prints the id of a second process in its group, then sleeps.
TWO_PROCESSES = """
import subprocess, sys, time
other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print("other", other.pid, flush=True)
time.sleep(600)
"""
DEAF = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("deaf", flush=True)
time.sleep(600)
"""
OWNER = """
import sys, time
from pathlib import Path
from dspark_train.store.child import ChildProcess
child = ChildProcess(["python", "-c", sys.argv[1]], {}, Path(sys.argv[2]))
child.start()
print(child.pid, flush=True)
time.sleep(600)
"""


def eventually(fact: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + DEADLINE_S
    while not fact():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., ChildProcess]]:
    children: list[ChildProcess] = []

    def run(code: str, env: dict[str, str] | None = None) -> ChildProcess:
        children.append(ChildProcess(["python", "-c", code], env or {}, tmp_path / "logs" / "child.log"))
        children[-1].start()
        return children[-1]

    yield run
    for child in children:
        child.stop(0)


def test_exit_code_and_last_lines_are_those_of_the_program(start):
    child = start(
        "import os, sys; print('one'); print(os.environ['WORD'], file=sys.stderr); sys.exit(3)", {"WORD": "w"}
    )
    assert child.wait(DEADLINE_S)
    assert child.exit_code() == 3
    assert not child.alive()
    assert sorted(child.last_lines()) == ["one", "w"]


def test_last_lines_are_those_of_the_last_start_only(start):
    for word in ("first", "second"):
        child = start(f"print('{word}')")
        assert child.wait(DEADLINE_S)
    assert child.last_lines() == ["second"]
    assert child.log.read_text().count("=== ") == 2


def test_stopping_ends_the_whole_group(start):
    child = start(TWO_PROCESSES)
    assert eventually(lambda: "other" in "".join(child.last_lines()))
    child.stop(5)
    assert child.exit_code() == -signal.SIGTERM
    assert eventually(lambda: not group_alive(child.pid))
    child.stop(5)


def test_a_child_that_ignores_the_request_is_killed_after_the_grace(start):
    child = start(DEAF)
    assert eventually(lambda: child.last_lines() == ["deaf"])
    child.stop(0.1)
    assert child.exit_code() == -signal.SIGKILL


def test_what_a_dead_program_left_of_its_group_is_ended(start):
    child = start(TWO_PROCESSES)
    assert eventually(lambda: "other" in "".join(child.last_lines()))
    os.kill(child.pid, signal.SIGKILL)
    assert child.wait(DEADLINE_S)
    assert eventually(lambda: not group_alive(child.pid))


def test_the_group_ends_when_its_owner_is_killed(tmp_path):
    with subprocess.Popen(
        [sys.executable, "-c", OWNER, TWO_PROCESSES, str(tmp_path / "child.log")], stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        group = int(owner.stdout.readline())
        assert eventually(lambda: "other" in (tmp_path / "child.log").read_text().partition("\n")[2])
        owner.kill()
    assert eventually(lambda: not group_alive(group))


def test_a_missing_program_says_where_it_was_looked_for(tmp_path):
    with pytest.raises(StartError, match="no-such-program is neither beside"):
        ChildProcess(["no-such-program"], {}, tmp_path / "child.log").start()


def test_stopping_before_the_start_is_fine(tmp_path):
    ChildProcess(["python"], {}, tmp_path / "child.log").stop(1)


def test_python_is_this_interpreter():
    assert find_program("python") == sys.executable


@pytest.mark.parametrize(
    ("argv", "env", "text"),
    [
        (["vllm", "--api-key", "abc", "x"], {}, "vllm --api-key '***' x"),
        (["vllm", "--api-key=abc"], {}, "vllm '--api-key=***'"),
        (["vllm", "--max-num-batched-tokens", "64"], {}, "vllm --max-num-batched-tokens 64"),
        (["vllm"], {"HF_TOKEN": "abc", "A": "1"}, "A=1 'HF_TOKEN=***' vllm"),
    ],
)
def test_secrets_do_not_reach_the_log(argv, env, text):
    assert describe(argv, env) == text
