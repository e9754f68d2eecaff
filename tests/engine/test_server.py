import signal

import pytest

from dspark_train.engine.server import VllmServer, root_cause
from dspark_train.errors import StartError
from dspark_train.store.ports import AddressInUse, reserve_port

TIMEOUT_S = 20.0
# An HTTP server whose /health is 503 twice, then 200.
SERVES = """
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
class Handler(BaseHTTPRequestHandler):
    asked = 0
    def do_GET(self):
        Handler.asked += 1
        self.send_response(200 if Handler.asked > 2 else 503)
        self.end_headers()
HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""
OUT_OF_MEMORY = """
import sys
for line in (
    "(EngineCore pid=9) ERROR 11-29 [core.py:9] torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB",
    "(APIServer pid=8) RuntimeError: Engine core initialization failed. See root cause above.",
):
    print(line)
sys.exit(1)
"""


@pytest.fixture
def port():
    lock = reserve_port()
    yield lock.port
    lock.release()


def test_a_server_is_started_when_health_answers_and_stops_on_leaving(tmp_path, port):
    server = VllmServer(["python", "-c", SERVES, str(port)], {}, tmp_path / "e.log", f"http://127.0.0.1:{port}")
    with server:
        server.start(TIMEOUT_S)
        assert server.alive()
        assert server.pid > 0
    assert server.exit_code() == -signal.SIGTERM


def test_a_child_that_exits_is_reported_with_its_root_cause_before_its_last_lines(tmp_path, port):
    server = VllmServer(["python", "-c", OUT_OF_MEMORY], {}, tmp_path / "e.log", f"http://127.0.0.1:{port}")
    with pytest.raises(StartError, match=r"exited with code 1 after \d+ s; log: .*e.log") as caught:
        server.start(TIMEOUT_S)
    assert not isinstance(caught.value, AddressInUse)
    assert caught.value.last_lines[0] == "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB"
    assert "See root cause above" in caught.value.last_lines[-1]


def test_a_taken_address_is_an_error_of_its_own(tmp_path, port):
    says = "raise SystemExit(\"OSError: [Errno 98] Address already in use ('127.0.0.1', 8000)\")"
    server = VllmServer(["python", "-c", says], {}, tmp_path / "e.log", f"http://127.0.0.1:{port}")
    with pytest.raises(AddressInUse):
        server.start(TIMEOUT_S)


def test_a_server_that_never_gets_healthy_is_ended_and_reported(tmp_path, port):
    argv = ["python", "-c", "import time; time.sleep(600)"]
    server = VllmServer(argv, {}, tmp_path / "e.log", f"http://127.0.0.1:{port}")
    with pytest.raises(StartError, match=r"was not healthy at http://127.0.0.1:\d+ within 0.3 s"):
        server.start(0.3)
    assert not server.alive()


def test_a_follower_is_started_without_waiting_for_health(tmp_path):
    with VllmServer(["python", "-c", "import time; time.sleep(600)"], {}, tmp_path / "e.log", "") as server:
        server.start(TIMEOUT_S)
        assert server.alive()


@pytest.mark.parametrize(
    ("lines", "cause"),
    [
        ([], ""),
        (["all is well"], ""),
        (["(EngineCore pid=3) ValueError: bad layer 99", "RuntimeError: done"], "ValueError: bad layer 99"),
        (["RuntimeError: Engine core initialization failed."], "RuntimeError: Engine core initialization failed."),
        (
            ["ValueError: later", "x ERROR No available memory for the cache blocks. Try increasing it."],
            "x ERROR No available memory for the cache blocks. Try increasing it.",
        ),
        (["pkg.errors.EngineDeadError: gone"], "pkg.errors.EngineDeadError: gone"),
    ],
)
def test_the_root_cause_is_the_first_error_that_is_not_a_consequence(lines, cause):
    assert root_cause(lines) == cause
