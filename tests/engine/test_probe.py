import asyncio
import http.server
import json
import threading

import httpx
import numpy as np
import pytest

from dspark_train.engine.extract import EngineRefused, HiddenShape
from dspark_train.engine.marker import MARKER_BYTES, Marker, marker_key
from dspark_train.engine.probe import check_hidden, hidden_array, probe, read_marker, read_sample, wait_for
from dspark_train.errors import SampleMissing, WrongData
from dspark_train.store.in_memory import InMemoryServer
from dspark_train.store.ports import reserve_port
from tests.engine.fakes import SHAPE, FakeEngine, sample_bytes

TOKENS = [5, 6, 7, 8]


def good() -> np.ndarray:
    return np.random.default_rng(0).standard_normal((4, 3, 8)).astype(np.float32)


def test_good_hidden_states_pass():
    check_hidden(good())


def one_layer_is(value):
    def change(hidden):
        hidden[:, 1] = value
        return hidden

    return change


def with_nan(hidden):
    hidden[2, 1, 3] = np.nan
    return hidden


def same_tokens(hidden):
    hidden[:, 2] = hidden[0, 2]
    return hidden


def same_layers(hidden):
    hidden[:, 2] = hidden[:, 1]
    return hidden


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (with_nan, "1 of 96 values are not finite"),
        (one_layer_is(np.inf), "32 of 96 values are not finite"),
        (one_layer_is(0.0), "stored layer 1 has one value in every place"),
        (same_tokens, "stored layer 2 is the same for every token"),
        (same_layers, "stored layers 1 and 2 are the same"),
    ],
)
def test_hidden_states_of_a_broken_engine_are_told_what_is_wrong(change, text):
    with pytest.raises(WrongData, match=text):
        check_hidden(change(good()))


def test_bfloat16_is_read_exactly():
    # 1.0, -2.5, 0.15625 and 3.0e38 (rounded) as bfloat16 bit patterns
    patterns = np.array([0x3F80, 0xC020, 0x3E20, 0x7F62], dtype=np.uint16)
    shape = HiddenShape(num_layers=1, hidden_size=2, dtype="bfloat16")
    hidden = hidden_array(patterns.view(np.uint8), 2, shape)
    assert hidden.shape == (2, 1, 2)
    assert hidden[0].tolist() == [[1.0, -2.5]]
    assert hidden[1, 0, 0] == 0.15625
    assert abs(hidden[1, 0, 1] - 3.0e38) < 2e36


@pytest.mark.parametrize("text", ["short", "x" * 4000, 'quotes " and \\ and \n' * 100, "umlaut ä" * 100])
def test_a_marker_has_a_fixed_size_and_keeps_its_beginning(text):
    data = Marker("full", text).encode()
    assert len(data) == MARKER_BYTES
    marker = Marker.decode(data)
    assert marker.kind == "full"
    assert marker.text[:5] == text[:5]


def test_unreadable_marker_bytes_are_a_fault_that_says_so():
    assert Marker.decode(b"\x00" * MARKER_BYTES).kind == "fault"
    assert "unreadable" in Marker.decode(b"{}").text


def test_a_sample_is_read_back_as_states_and_tokens():
    store = InMemoryServer().client(2**20)
    store.put("k", sample_bytes(TOKENS))
    hidden, tokens = read_sample(store, "k", 4, SHAPE)
    assert hidden.reshape(-1).tolist() == list(range(48))
    assert tokens.tolist() == TOKENS


def test_waiting_ends_with_the_object_with_its_marker_or_at_the_deadline():
    store = InMemoryServer().client(2**20)
    store.put("there", sample_bytes(TOKENS))
    store.put(marker_key("bad"), Marker("fault", "non-finite").encode())
    wait_for(store, "there", 1.0)
    assert read_marker(store, "bad") == Marker("fault", "non-finite")
    with pytest.raises(WrongData, match="could not put bad: non-finite"):
        wait_for(store, "bad", 1.0)
    with pytest.raises(SampleMissing, match=r"none was answered, and is not in the store after 0.02 s"):
        wait_for(store, "none", 0.02)


@pytest.fixture
def served():
    """A fake engine behind a real socket. Yields (its URL, the engine, a store client of the owner)."""
    server = InMemoryServer()
    owner = server.client(2**20)
    engine = FakeEngine(server)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))

            async def answer() -> httpx.Response:
                response = await engine._answer(httpx.Request("POST", "http://engine", content=body))
                await asyncio.gather(*engine.puts)
                return response

            response = asyncio.run(answer())
            self.send_response(response.status_code)
            self.end_headers()
            self.wfile.write(response.content)

        def log_message(self, *args: object) -> None:
            json.dumps(args)

    lock = reserve_port()
    with http.server.HTTPServer(("127.0.0.1", lock.port), Handler) as web:
        thread = threading.Thread(target=web.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{lock.port}", engine, owner
        web.shutdown()
        thread.join()
    lock.release()


def test_a_right_probe_leaves_nothing_in_the_store(served):
    url, _, owner = served
    probe(url, "m", TOKENS, "probe/1", owner.segment, SHAPE, owner, 10.0)
    assert owner.exist(["probe/1"]) == [False]


def test_a_probe_of_a_failing_engine_says_why_and_leaves_nothing(served):
    url, engine, owner = served
    engine.markers[TOKENS[0]] = Marker("fault", "Non-finite producer tensor")
    with pytest.raises(WrongData, match="Non-finite producer tensor"):
        probe(url, "m", TOKENS, "probe/1", owner.segment, SHAPE, owner, 10.0)
    engine.status[TOKENS[0]] = [503]
    with pytest.raises(EngineRefused, match="answered 503"):
        probe(url, "m", TOKENS, "probe/1", owner.segment, SHAPE, owner, 10.0)
    assert owner.exist(["probe/1", marker_key("probe/1")]) == [False, False]


def test_a_probe_of_an_engine_that_is_not_there_says_so():
    store = InMemoryServer().client(2**20)
    lock = reserve_port()
    with pytest.raises(EngineRefused, match="did not answer the probe: ConnectError"):
        probe(f"http://127.0.0.1:{lock.port}", "m", TOKENS, "k", store.segment, SHAPE, store, 5.0)
    lock.release()
