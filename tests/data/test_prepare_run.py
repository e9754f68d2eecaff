import threading
from pathlib import Path

import pytest

from dspark_train.cli.prepare_run import ending_with, exclusively
from dspark_train.data.prepare import work_directory
from dspark_train.engine.server import VllmServer
from dspark_train.errors import StartError, UsageError


def test_work_ends_with_the_servers_own_error_when_the_server_dies(tmp_path: Path) -> None:
    code = "import sys; print('ValueError: no such model'); sys.exit(3)"
    server = VllmServer(["python", "-c", code], {}, tmp_path / "vllm.log", base_url="")
    server.start(10)
    with pytest.raises(StartError, match=r"exited with code 3(.|\n)*ValueError: no such model"), ending_with(server):
        threading.Event().wait(60)


def test_work_that_fails_by_itself_keeps_its_own_error(tmp_path: Path) -> None:
    server = VllmServer(["python", "-c", "input()"], {}, tmp_path / "vllm.log", base_url="")
    with pytest.raises(ZeroDivisionError), server, ending_with(None):
        raise ZeroDivisionError


def test_two_preparations_of_one_data_set_exclude_each_other(tmp_path: Path) -> None:
    out = tmp_path / "data"
    with exclusively(out):
        with pytest.raises(UsageError) as caught, exclusively(out):
            pass
        assert str(caught.value) == f"another prepare is making {out}: wait for it, or name another --out"
        work_directory(out).rename(out)  # the data set is complete
    with exclusively(out):
        pass
