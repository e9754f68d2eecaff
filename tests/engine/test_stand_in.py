"""The stand-in for vLLM: its answers without a store, and as a process of its own with the real one."""

import asyncio
import ctypes
import json
import time

import httpx
import numpy as np
import pytest

from dspark_train.engine.extract import HiddenShape, check_manifest, read_answer, request_body
from dspark_train.engine.marker import Marker
from dspark_train.engine.probe import hidden_array, probe, read_sample, wait_for
from dspark_train.engine.server import VllmServer
from dspark_train.engine.stand_in import Pace, StandIn, manifest_of, parse
from dspark_train.engine.stand_in_states import StandInStates
from dspark_train.engine.stand_in_writers import SampleWriter
from dspark_train.store.on_mooncake import MooncakeClient
from dspark_train.store.ports import reserve_port

LAYER_IDS, WIDTH = (1, 2, 4), 64
SHAPE = HiddenShape(len(LAYER_IDS), WIDTH, "float32")
BFLOAT16 = HiddenShape(len(LAYER_IDS), WIDTH, "bfloat16")
IDS = list(range(40, 75))
TIMEOUT_S = 20.0


class Native:
    """Keeps what is put. status: what puts of samples answer."""

    def __init__(self, status: int = 0) -> None:
        self.status = status
        self.objects: dict[str, bytes] = {}
        self.configs: list[object] = []

    def put_from(self, key, address, num_bytes, config) -> int:
        if not self.status:
            self.objects[key] = ctypes.string_at(address, num_bytes)
        self.configs.append(config)
        return self.status

    def put(self, key, data, config) -> int:
        self.objects[key] = data
        return 0

    def register_buffer(self, address, num_bytes) -> int:
        return 0

    def unregister_buffer(self, address) -> int:
        return 0


def ask(application: StandIn, method: str, path: str, body: object = None) -> httpx.Response:
    async def send() -> httpx.Response:
        transport = httpx.ASGITransport(app=application)
        async with httpx.AsyncClient(transport=transport, base_url="http://engine") as client:
            return await client.request(method, path, json=body)

    return asyncio.run(send())


def stand_in(native: Native, shape: HiddenShape = SHAPE) -> StandIn:
    return StandIn(SampleWriter(native, StandInStates(LAYER_IDS, WIDTH), shape), Pace(0))


@pytest.mark.parametrize("shape", [SHAPE, BFLOAT16])
def test_a_sample_is_answered_and_put_as_the_feeder_wants_it(shape):
    native = Native()
    application = stand_in(native, shape)
    answer = ask(application, "POST", "/v1/completions", request_body("m", IDS, "run/1", "host:1"))
    num_bytes = read_answer(answer, IDS, "run/1", shape)
    application._thread.shutdown()
    data = np.frombuffer(native.objects["run/1"], np.uint8)
    layout = shape.layout(len(IDS))
    assert len(data) == num_bytes == layout.total_bytes
    assert data[layout.tokens_offset :][: layout.tokens_bytes].view(np.int64).tolist() == IDS
    wanted = StandInStates(LAYER_IDS, WIDTH).of(IDS)
    found = hidden_array(data, len(IDS), shape)
    assert np.array_equal(found, wanted) if shape is SHAPE else np.allclose(found, wanted, rtol=2**-8)
    assert native.configs[0].preferred_segment == "host:1"
    assert native.configs[0].with_hard_pin


def test_a_put_that_fails_leaves_a_marker():
    native = Native(status=-600)
    writer = SampleWriter(native, StandInStates(LAYER_IDS, WIDTH), SHAPE)
    writer.write(IDS, "run/1", "")
    marker = Marker.decode(native.objects["run/1:error"])
    assert marker.kind == "fault"
    assert "(-600)" in marker.text


@pytest.mark.parametrize(
    "body", [{}, {"prompt": "text"}, {"prompt": []}, {"prompt": [1], "kv_transfer_params": 3}, [1]]
)
def test_what_is_no_extraction_request_is_refused(body):
    assert ask(stand_in(Native()), "POST", "/v1/completions", body).status_code == 400


def test_without_a_key_nothing_is_put():
    native = Native()
    answer = ask(stand_in(native), "POST", "/v1/completions", {"model": "m", "prompt": IDS})
    assert answer.json()["kv_transfer_params"] is None
    assert not native.objects


def test_health_is_answered_and_other_paths_are_not():
    assert ask(stand_in(Native()), "GET", "/health").status_code == 200
    assert ask(stand_in(Native()), "GET", "/metrics").status_code == 404


@pytest.mark.parametrize("shape", [SHAPE, BFLOAT16])
@pytest.mark.parametrize("num_tokens", [1, 5, 511])
def test_its_manifest_is_the_one_that_is_asked_for(shape, num_tokens):
    manifest = json.loads(json.dumps(manifest_of("k", "s", num_tokens, shape)))
    assert check_manifest(manifest, num_tokens, "k", shape) == shape.layout(num_tokens).total_bytes


def test_a_pace_makes_work_wait_for_what_came_before_it():
    now_s = [10.0]
    pace = Pace(100.0, lambda: now_s[0])
    assert pace.wait_s(50) == pytest.approx(0.5)
    assert pace.wait_s(100) == pytest.approx(1.5)
    now_s[0] = 20.0
    assert pace.wait_s(10) == pytest.approx(0.1)
    assert Pace(0).wait_s(10**9) == 0


def test_flags_of_vllm_that_mean_nothing_here_are_ignored():
    argv = ["serve", "/m", "--max-model-len", "513", "--enforce-eager", "--kv-transfer-config", "{}"]
    options = parse([*argv, "--speculative-config", "{}", "--host", "h", "--port", "1", "--dtype", "bfloat16"])
    assert (options.model, options.host, options.port, options.dtype) == ("/m", "h", 1, "bfloat16")


@pytest.mark.real
def test_as_a_process_it_starts_in_seconds_and_passes_the_probe(mooncake_master, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"hidden_size": WIDTH}))
    reader = MooncakeClient(
        local_hostname="127.0.0.1",
        master=mooncake_master.rpc,
        segment_bytes=64 * 2**20,
        buffer_bytes=16 * 2**20,
        timeout_s=TIMEOUT_S,
    )
    lock = reserve_port()
    url = f"http://127.0.0.1:{lock.port}"
    server = VllmServer(command(tmp_path, lock.port, mooncake_master.rpc), {}, tmp_path / "e.log", url)
    with server:
        began_s = time.monotonic()
        server.start(TIMEOUT_S)
        assert time.monotonic() - began_s < 10
        probe(url, "m", IDS, "stand-in/probe", reader.segment, SHAPE, reader, TIMEOUT_S)
        body = request_body("m", IDS, "stand-in/1", reader.segment)
        read_answer(httpx.post(f"{url}/v1/completions", json=body), IDS, "stand-in/1", SHAPE)
        wait_for(reader, "stand-in/1", TIMEOUT_S)
        hidden, _ = read_sample(reader, "stand-in/1", len(IDS), SHAPE)
    assert np.array_equal(hidden, StandInStates(LAYER_IDS, WIDTH).of(IDS))
    reader.remove(["stand-in/1"])
    reader.close()
    lock.release()


def command(model: object, port: int, rpc: str, module: str = "dspark_train.engine.stand_in") -> list[str]:
    """The stand-in's argv, as the plan would have it."""
    mooncake = {
        "local_hostname": "127.0.0.1",
        "master_server_address": rpc,
        "local_buffer_size": 16 * 2**20,
        "protocol": "tcp",
        "device_name": "",
    }
    transfer = {"kv_connector_extra_config": {"mooncake": mooncake}}
    extraction = {"draft_model_config": {"hf_config": {"eagle_aux_hidden_state_layer_ids": list(LAYER_IDS)}}}
    argv = ["python", "-m", module, "serve", str(model), "--host", "127.0.0.1", "--port", str(port)]
    argv += ["--kv-transfer-config", json.dumps(transfer), "--speculative-config", json.dumps(extraction)]
    return [*argv, "--dtype", "float32", "--enforce-eager", "--max-model-len", "513"]
