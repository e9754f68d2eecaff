"""What lies in a rank's own segment is copied as plain memory; what only claims to lie there is not touched."""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dspark_train.store.deadline import Span
from dspark_train.store.on_mooncake import MooncakeClient
from dspark_train.store.own_segment import OwnSegment, start_of
from dspark_train.store.protocol import Range

MIB = 2**20


def replica(address: int, size: int, endpoint: str = "here:1", status: str = "COMPLETE", in_memory: bool = True) -> Any:
    buffer = SimpleNamespace(buffer_address=address, size=size, transport_endpoint=endpoint)
    return SimpleNamespace(
        is_memory_replica=lambda: in_memory,
        status=SimpleNamespace(name=status),
        get_memory_descriptor=lambda: SimpleNamespace(buffer_descriptor=buffer),
    )


@dataclass
class Descriptors:
    """The native client, as far as it tells where objects lie."""

    replicas: dict[str, list[Any]] = field(default_factory=dict)

    def get_replica_desc(self, key):
        return self.replicas.get(key, [])

    def batch_get_replica_desc(self, keys):
        return {key: self.replicas[key] for key in keys if key in self.replicas}


def test_only_whole_objects_of_this_endpoint_within_the_segment_are_found():
    own = OwnSegment("here:1", Span(1000, 2000))
    replicas = {
        "good": [replica(1000, 1000)],
        "elsewhere": [replica(1000, 10, endpoint="there:1")],
        "an earlier owner of this endpoint": [replica(1990, 11)],
        "being put": [replica(1000, 10, status="PROCESSING")],
        "on disk": [replica(1000, 10, in_memory=False)],
    }
    assert own.find(Descriptors(replicas), [*replicas, "missing"]) == {"good": Span(1000, 2000)}


def test_the_segment_is_known_by_what_stands_in_it():
    memory = np.frombuffer(b"x" * 4096, dtype=np.uint8).copy()
    memory[:4] = list(b"mine")
    found = Descriptors({"k": [replica(memory.ctypes.data, 4)]})
    assert OwnSegment.found_by(found, "k", b"mine", 4096) is not None
    assert OwnSegment.found_by(found, "k", b"not.", 4096) is None
    assert OwnSegment.found_by(found, "k", b"mine", 2**50) is None, "no mapping here is so large"
    assert OwnSegment.found_by(Descriptors({"k": [replica(64, 4)]}), "k", b"mine", 4) is None, "not our memory"


@pytest.mark.parametrize(("offset", "num_bytes", "start"), [(2, 3, 102), (0, 8, 100), (6, 3, None), (-1, 2, None)])
def test_a_range_beyond_its_object_has_no_start(offset, num_bytes, start):
    assert start_of(Range("k", offset, 1, num_bytes), Span(100, 108)) == start


@pytest.mark.real
def test_a_rank_finds_its_segment_and_reads_there_what_others_put(mooncake_master):
    def client(segment_bytes: int) -> MooncakeClient:
        return MooncakeClient(
            local_hostname="127.0.0.1",
            master=mooncake_master.rpc,
            segment_bytes=segment_bytes,
            buffer_bytes=16 * MIB,
            timeout_s=20,
        )

    owner, other, writer = client(64 * MIB), client(64 * MIB), client(0)
    try:
        assert owner._own is not None
        assert other._own is not None
        for number, at in enumerate((owner, other)):
            writer.put(f"own/{number}", bytes([number + 1]) * 1000, at.segment)
        found = owner._own.find(owner._client, ["own/0", "own/1", "own/none"])
        assert list(found) == ["own/0"], "what lies in another client's segment is not ours, in one process or two"
        buffer = np.zeros(2000, np.uint8)
        owner.register(buffer.ctypes.data, 2000)
        ranges = [Range("own/0", 0, 0, 1000), Range("own/1", 0, 1000, 1000)]
        assert owner.read(buffer.ctypes.data, ranges) == ["", ""]
        assert buffer.tolist() == [1] * 1000 + [2] * 1000
    finally:
        for each in (owner, other, writer):
            each.close()
