"""A sample larger than a client's local buffer is carried, into a segment and out of it, near and far."""

import numpy as np
import pytest

from dspark_train.engine.puts import Puts
from dspark_train.store.on_mooncake import MooncakeClient, join
from dspark_train.store.protocol import Range, SampleLayout

pytestmark = pytest.mark.real
MIB = 2**20
BUFFER_BYTES = 16 * MIB
NUM_TOKENS, BYTES_PER_TOKEN = 1280, 32768


def test_forty_mib_go_through_clients_with_buffers_of_sixteen(mooncake_master):
    layout = SampleLayout(NUM_TOKENS, BYTES_PER_TOKEN)
    assert layout.hidden_bytes == 40 * MIB > 2 * BUFFER_BYTES
    native = join(local_hostname="127.0.0.1", master=mooncake_master.rpc, buffer_bytes=BUFFER_BYTES)

    def client(segment_bytes: int) -> MooncakeClient:
        return MooncakeClient(
            local_hostname="127.0.0.1",
            master=mooncake_master.rpc,
            segment_bytes=segment_bytes,
            buffer_bytes=BUFFER_BYTES,
            timeout_s=60,
        )

    owner, other = client(128 * MIB), client(0)
    try:
        staging = np.random.default_rng(0).integers(0, 255, layout.total_bytes, dtype=np.uint8)
        assert native.register_buffer(staging.ctypes.data, staging.nbytes) == 0
        Puts(native).sample("large/1", owner.segment, staging.ctypes.data, staging.nbytes)
        part = NUM_TOKENS // 8 * BYTES_PER_TOKEN
        ranges = [Range("large/1", at, at, part) for at in range(0, layout.hidden_bytes, part)]
        ranges.append(Range("large/1", layout.tokens_offset, layout.tokens_offset, layout.tokens_bytes))
        for reader in (owner, other):
            ring = np.zeros(layout.total_bytes, np.uint8)
            reader.register(ring.ctypes.data, ring.nbytes)
            assert set(reader.read(ring.ctypes.data, ranges)) == {""}
            assert np.array_equal(ring[: layout.hidden_bytes], staging[: layout.hidden_bytes])
            assert np.array_equal(ring[layout.tokens_offset :][: layout.tokens_bytes], staging[-layout.tokens_bytes :])
            reader.unregister(ring.ctypes.data)
    finally:
        owner.remove(["large/1"])
        owner.close()
        other.close()
        native.close()
