"""Files as objects: whole or not there, in the format that others read, and nothing else of the directory touched."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from dspark_train.errors import StoreError, StoreFull
from dspark_train.store.on_disk import DiskClient, remove_objects, sample_path
from dspark_train.store.protocol import Range, SampleLayout
from dspark_train.store.sample_file import write_sample

SHAPE = (5, 3, 7)
LAYOUT = SampleLayout(5, 3 * 7 * 2)


def put(root: Path, key: str, dtype: str = "bfloat16") -> bytes:
    """A sample of 5 tokens; returns its object as another store would hold it."""
    hidden = np.random.default_rng(0).integers(0, 256, LAYOUT.hidden_bytes, dtype=np.uint8)
    write_sample(sample_path(root, key), hidden, SHAPE, dtype, np.arange(5, dtype=np.int64))
    data = bytearray(LAYOUT.total_bytes)
    data[: LAYOUT.hidden_bytes] = hidden.tobytes()
    data[LAYOUT.tokens_offset : LAYOUT.tokens_offset + 40] = np.arange(5, dtype="<i8").tobytes()
    return bytes(data)


def read(client: DiskClient, *ranges: Range) -> tuple[bytes, list[str]]:
    buffer = np.full(LAYOUT.total_bytes, 9, dtype=np.uint8)
    client.register(buffer.ctypes.data, buffer.nbytes)
    told = client.read(buffer.ctypes.data, ranges)
    return buffer.tobytes(), told


def test_any_range_of_a_sample_reads_as_from_another_store(tmp_path: Path) -> None:
    data, client = put(tmp_path, "run/1/a"), DiskClient(tmp_path)
    assert read(client, Range("run/1/a", 0, 0, len(data))) == (data, [""])
    for start, end in ((0, 42), (20, LAYOUT.tokens_offset + 8), (LAYOUT.tokens_offset, len(data)), (207, 215)):
        buffer, told = read(client, Range("run/1/a", start, 0, end - start))
        assert (buffer[: end - start], told) == (data[start:end], [""])
    assert "-600" in read(client, Range("run/1/a", len(data) - 8, 0, 16))[1][0]


def test_a_sample_is_a_safetensors_file_of_hidden_states_and_token_ids(tmp_path: Path) -> None:
    put(tmp_path, "a")
    raw = (tmp_path / "a.safetensors").read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    assert {name: (entry["dtype"], entry["shape"]) for name, entry in header.items()} == {
        "token_ids": ("I64", [5]),
        "hidden_states": ("BF16", [5, 3, 7]),
    }
    ends = sorted(tuple(entry["data_offsets"]) for entry in header.values())
    assert ends[0][0] == 0
    assert ends[0][1] == ends[1][0]
    assert 8 + length + ends[1][1] == len(raw)


@pytest.mark.torch
def test_the_safetensors_library_reads_it(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file

    data = put(tmp_path, "a")
    tensors = load_file(tmp_path / "a.safetensors")
    assert tensors["hidden_states"].dtype == torch.bfloat16
    assert tensors["hidden_states"].view(torch.uint8).numpy().tobytes() == data[: LAYOUT.hidden_bytes]
    assert tensors["token_ids"].tolist() == list(range(5))


@pytest.mark.torch
def test_a_file_that_the_safetensors_library_wrote_is_read(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import save_file

    states = torch.arange(105, dtype=torch.float32).view(5, 3, 7).bfloat16()
    save_file({"hidden_states": states, "token_ids": torch.arange(5)}, tmp_path / "a.safetensors")
    buffer, told = read(DiskClient(tmp_path), Range("a", 0, 0, LAYOUT.total_bytes))
    assert told == [""]
    assert buffer[: LAYOUT.hidden_bytes] == states.view(torch.uint8).numpy().tobytes()
    assert np.frombuffer(buffer[LAYOUT.tokens_offset :][:40], dtype="<i8").tolist() == list(range(5))


@pytest.mark.parametrize(
    "spoil", [lambda raw: raw[:-1], lambda raw: raw[:4], lambda raw: b"\xff" * 8 + raw[8:], lambda raw: b""]
)
def test_a_damaged_file_says_so_and_reads_as_nothing(tmp_path: Path, spoil) -> None:  # type: ignore[no-untyped-def]
    put(tmp_path, "a")
    file = tmp_path / "a.safetensors"
    file.write_bytes(spoil(file.read_bytes()))
    (told,) = read(DiskClient(tmp_path), Range("a", 0, 0, 64))[1]
    assert "not a file of hidden states" in told


@pytest.mark.parametrize("key", ["", "../a", "a/../../b", "/etc/passwd", "a//b", "."])
def test_a_key_that_leads_elsewhere_is_refused(tmp_path: Path, key: str) -> None:
    with pytest.raises(StoreError, match="cannot be the name of a file"):
        DiskClient(tmp_path).put(key, b"x")


def test_removing_a_runs_objects_leaves_everything_else(tmp_path: Path) -> None:
    put(tmp_path, "mine/1/a")
    put(tmp_path, "others/1/a")
    DiskClient(tmp_path).put("mine/1/a:error", b"why")
    (tmp_path / "mine" / "notes.txt").write_text("kept")
    (tmp_path / "mine" / "1" / "b.safetensors.1-2.partial").write_bytes(b"broken off")
    assert remove_objects(tmp_path, "mine/") == 2
    left = sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file())
    assert left == ["mine/notes.txt", "others/1/a.safetensors"]
    assert not (tmp_path / "mine" / "1").exists()


def test_removing_a_link_leaves_what_it_leads_to(tmp_path: Path) -> None:
    put(tmp_path / "archive", "hs_0")
    (tmp_path / "store").mkdir()
    sample_path(tmp_path / "store", "k").symlink_to(tmp_path / "archive" / "hs_0.safetensors")
    client = DiskClient(tmp_path / "store")
    assert client.exist(["k"]) == [True]
    client.remove(["k"])
    assert client.exist(["k"]) == [False]
    assert (tmp_path / "archive" / "hs_0.safetensors").exists()


def test_a_disk_without_the_promised_room_is_refused_with_the_figures(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"bytes free, and store.segment_gib promises 1000000000000000000"):
        DiskClient(tmp_path, "rank-0", 10**18)


def test_two_lives_of_a_member_have_two_segments(tmp_path: Path) -> None:
    first, second = (DiskClient(tmp_path, "rank-0", 1) for _ in range(2))
    assert first.segment != second.segment
    assert DiskClient(tmp_path).segment == ""


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 256 KiB."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small disk")
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "small", str(tmp_path)], check=False)
    if mounted.returncode:
        pytest.skip("mounting is not allowed here")
    yield tmp_path
    subprocess.run(["umount", str(tmp_path)], check=True)


def test_a_full_disk_refuses_a_put_and_leaves_nothing_half_written(small_disk: Path) -> None:
    client = DiskClient(small_disk)
    with pytest.raises(StoreFull, match=r"no segment has room for the object \(-200\)"):
        client.put("a", b"z" * 300_000)
    assert list(small_disk.iterdir()) == []
