"""One set of facts about a StoreClient, for the fake, for Mooncake and for a directory."""

import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from dspark_train.errors import StoreError, StoreFull
from dspark_train.store.in_memory import InMemoryServer
from dspark_train.store.on_disk import DiskClient
from dspark_train.store.on_mooncake import MooncakeClient
from dspark_train.store.protocol import Range, SampleLayout, StoreClient, plain_copy

MIB = 2**20
BUFFER_BYTES = 16 * MIB
_unique = itertools.count()


@dataclass
class Lab:
    """Clients of one store. new: makes one with a segment of so many bytes; fresh: a prefix no other test uses."""

    new: Callable[[int], StoreClient]
    fresh: str


@pytest.fixture(params=["in_memory", "disk", pytest.param("mooncake", marks=pytest.mark.real)])
def lab(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Lab]:
    clients: list[StoreClient] = []
    server = InMemoryServer()
    rpc = request.getfixturevalue("mooncake_master").rpc if request.param == "mooncake" else ""

    def new(segment_bytes: int) -> StoreClient:
        if rpc:
            client: StoreClient = MooncakeClient(
                local_hostname="127.0.0.1",
                master=rpc,
                segment_bytes=segment_bytes,
                buffer_bytes=BUFFER_BYTES,
                timeout_s=20,
            )
        elif request.param == "disk":
            client = DiskClient(tmp_path, "owner", segment_bytes)
        else:
            client = server.client(segment_bytes, BUFFER_BYTES)
        clients.append(client)
        return client

    yield Lab(new, f"t{next(_unique)}/")
    with ThreadPoolExecutor() as pool:  # a Mooncake client takes a second or two to leave
        list(pool.map(lambda client: client.close(), clients))


in_memory_only = pytest.mark.parametrize(
    "lab", ["in_memory", pytest.param("mooncake", marks=pytest.mark.real)], indirect=True
)
"""Of stores whose room is memory: a directory is as large as its disk, and no owner's death empties it."""


def buffer_for(client: StoreClient, num_bytes: int) -> np.ndarray:
    buffer = np.zeros(num_bytes, dtype=np.uint8)
    client.register(buffer.ctypes.data, num_bytes)
    return buffer


def test_samples_are_read_straight_to_their_rows_and_their_tokens_apart(lab):
    owner, writer = lab.new(64 * MIB), lab.new(0)
    layouts = [SampleLayout(num_tokens, 100) for num_tokens in (3, 64, 17)]
    rng = np.random.default_rng(0)
    objects = [rng.bytes(layout.total_bytes) for layout in layouts]
    tokens_base = sum(layout.hidden_bytes for layout in layouts) + 7
    buffer = buffer_for(owner, tokens_base + 84 * 8 + 7)
    ranges, row, tokens_row = [], 0, 0
    for i, (layout, data) in enumerate(zip(layouts, objects, strict=True)):
        key = f"{lab.fresh}{i}"
        writer.put(key, data, owner.segment)
        hidden = Range(key, 0, row, layout.hidden_bytes)
        tokens = Range(key, layout.tokens_offset, tokens_base + tokens_row, layout.tokens_bytes)
        ranges += [hidden, tokens]
        row, tokens_row = row + layout.hidden_bytes, tokens_row + layout.tokens_bytes
    assert owner.read(buffer.ctypes.data, ranges) == [""] * 6
    hidden = b"".join(data[: layout.hidden_bytes] for layout, data in zip(layouts, objects, strict=True))
    tokens = b"".join(
        data[layout.tokens_offset :][: layout.tokens_bytes] for layout, data in zip(layouts, objects, strict=True)
    )
    assert buffer[: len(hidden)].tobytes() == hidden
    assert buffer[tokens_base : tokens_base + len(tokens)].tobytes() == tokens
    untouched = [*buffer[len(hidden) : tokens_base], *buffer[tokens_base + len(tokens) :]]
    assert not any(untouched)


def test_a_client_without_a_segment_reads_as_well(lab):
    owner, other = lab.new(32 * MIB), lab.new(0)
    data = np.random.default_rng(1).bytes(6400)
    owner.put(f"{lab.fresh}x", data, owner.segment)
    buffer = buffer_for(other, 6400)
    assert other.read(buffer.ctypes.data, [Range(f"{lab.fresh}x", 0, 0, 6400)]) == [""]
    assert buffer.tobytes() == data
    assert other.segment == ""
    assert owner.segment


def test_part_of_an_object_is_read(lab):
    owner = lab.new(32 * MIB)
    owner.put(f"{lab.fresh}x", bytes(range(200)), owner.segment)
    buffer = buffer_for(owner, 64)
    ranges = [Range(f"{lab.fresh}x", 100, 1, 4), Range(f"{lab.fresh}x", 0, 10, 2)]
    assert owner.read(buffer.ctypes.data, ranges) == ["", ""]
    assert bytes(buffer[:12]) == bytes([0, 100, 101, 102, 103, 0, 0, 0, 0, 0, 0, 1])


def test_what_cannot_be_read_in_full_says_why_and_the_rest_is_read(lab):
    owner = lab.new(32 * MIB)
    owner.put(f"{lab.fresh}short", b"s" * 64, owner.segment)
    owner.put(f"{lab.fresh}good", b"g" * 128, owner.segment)
    buffer = buffer_for(owner, 1024)
    ranges = [
        Range(f"{lab.fresh}short", 0, 0, 128),
        Range(f"{lab.fresh}none", 0, 128, 128),
        Range(f"{lab.fresh}good", 0, 256, 128),
        Range(f"{lab.fresh}good", 100, 512, 64),
        Range(f"{lab.fresh}none", 64, 600, 8),
    ]
    short, none, good, beyond, none_part = owner.read(buffer.ctypes.data, ranges)
    assert "(-600)" in short
    assert none == none_part == "object not found (-704)"
    assert good == ""
    assert "(-600)" in beyond
    assert buffer[256:384].tobytes() == b"g" * 128


def test_memory_that_is_not_registered_is_not_written(lab):
    owner = lab.new(32 * MIB)
    owner.put(f"{lab.fresh}x", b"x" * 64, owner.segment)
    buffer = np.zeros(64, dtype=np.uint8)
    (text,) = owner.read(buffer.ctypes.data, [Range(f"{lab.fresh}x", 0, 0, 64)])
    assert text
    assert not buffer.any()


def test_existence_and_removal_are_of_single_keys_even_when_leased(lab):
    owner, other = lab.new(32 * MIB), lab.new(0)
    keys = [f"{lab.fresh}{i}" for i in range(3)]
    for key in keys:
        other.put(key, b"data", owner.segment)
    assert owner.exist([*keys, f"{lab.fresh}none"]) == [True, True, True, False]
    other.remove([*keys[:2], f"{lab.fresh}none"])
    assert owner.exist(keys) == [False, False, True]
    owner.remove(keys)
    assert owner.exist([]) == []
    other.remove([])


@pytest.mark.parametrize("name", ["run/", "a+b.c/(1)[2]{3}^$|?*", "back\\slash-_:~/"])
def test_all_objects_of_a_prefix_are_removed_and_no_others_even_when_leased(lab, name):
    owner, other = lab.new(32 * MIB), lab.new(0)
    prefix = lab.fresh + name
    mine = [f"{prefix}{i}" for i in range(5)]
    others = [f"{lab.fresh}x{name}0", f"{lab.fresh}{name[:-1]}!0", f"x{prefix}0"]
    for key in [*mine, *others]:
        other.put(key, b"data", owner.segment)
    assert owner.exist(mine) == [True] * 5
    assert other.remove_prefix(prefix) == 5
    assert owner.exist([*mine, *others]) == [False] * 5 + [True] * 3
    assert other.remove_prefix(prefix) == 0
    owner.remove(others)


def test_no_prefix_at_all_is_refused(lab):
    with pytest.raises(StoreError, match="empty prefix"):
        lab.new(0).remove_prefix("")


@in_memory_only
def test_a_full_store_is_an_error_of_its_own_and_loses_nothing(lab):
    owner, other = lab.new(16 * MIB), lab.new(0)
    data, keys = b"z" * (4 * MIB), [f"{lab.fresh}full{i}" for i in range(6)]
    with pytest.raises(StoreFull, match=r"put t\d+/full\d: no segment has room for the object \(-200\)"):
        [other.put(key, data, owner.segment) for key in keys]
    assert owner.exist(keys)[:3] == [True] * 3
    owner.remove(keys[:1])
    other.put(f"{lab.fresh}again", data, owner.segment)
    assert owner.exist([f"{lab.fresh}again"]) == [True]


@in_memory_only
def test_an_object_larger_than_the_buffer_is_refused_by_name(lab):
    owner = lab.new(64 * MIB)
    with pytest.raises(StoreError, match=r"put t\d+/big: .*larger than the client's buffer \(-600\)"):
        owner.put(f"{lab.fresh}big", b"z" * (BUFFER_BYTES + 64), owner.segment)


def test_a_key_that_exists_keeps_its_bytes(lab):
    owner = lab.new(32 * MIB)
    owner.put(f"{lab.fresh}x", b"a" * 64)
    owner.put(f"{lab.fresh}x", b"b" * 64)
    buffer = buffer_for(owner, 64)
    assert owner.read(buffer.ctypes.data, [Range(f"{lab.fresh}x", 0, 0, 64)]) == [""]
    assert buffer.tobytes() == b"a" * 64


def test_a_closed_client_refuses_instead_of_crashing(lab):
    client = lab.new(0)
    client.close()
    client.close()
    with pytest.raises(StoreError, match="the client is closed"):
        client.exist(["x"])


@in_memory_only
def test_the_objects_of_a_segment_go_with_its_owner(lab):
    owner, other, witness = lab.new(32 * MIB), lab.new(32 * MIB), lab.new(0)
    witness.put(f"{lab.fresh}a", b"a", owner.segment)
    witness.put(f"{lab.fresh}b", b"b", other.segment)
    owner.close()
    assert witness.exist([f"{lab.fresh}a", f"{lab.fresh}b"]) == [False, True]


def test_ranges_of_the_own_segment_are_left_to_the_callers_copy_and_no_others(lab):
    owner, writer = lab.new(64 * MIB), lab.new(0)
    data = np.random.default_rng(5).bytes(3 * MIB)
    writer.put(f"{lab.fresh}x", data, owner.segment)
    in_memory = [] if isinstance(owner, DiskClient) else [0, 1, 2]
    for reader, expected in ((owner, in_memory), (lab.new(0), [])):
        buffer, copied = buffer_for(reader, 3 * MIB), []
        ranges = [Range(f"{lab.fresh}x", part * MIB, part * MIB, MIB) for part in range(3)]
        ranges += [Range(f"{lab.fresh}none", 0, 0, 8), Range(f"{lab.fresh}x", 3 * MIB - 4, 0, 8)]

        def copy(place: int, target: int, source: int, num_bytes: int, copied: list[int] = copied) -> None:
            copied.append(place)
            plain_copy(place, target, source, num_bytes)

        reasons = reader.read(buffer.ctypes.data, ranges, copy)
        assert [bool(reason) for reason in reasons] == [False, False, False, True, True]
        assert sorted(copied) == expected
        assert buffer.tobytes() == data
