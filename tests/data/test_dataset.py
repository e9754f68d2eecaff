import hashlib
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from dspark_train.data.dataset import Dataset, write_index
from dspark_train.errors import DataError

ROWS = [([1, 2, 3], [0, 1, 1]), ([4], [1]), ([5, 6], [0, 1]), ([7, 8, 9, 10], [0, 0, 0, 1]), ([11], [1])]
AGAIN = "make it again: dspark-train prepare --topology FILE --overwrite"


def save_rows(directory: Path, rows: Sequence[tuple[list[int], list[int]]], shards: int = 1, batch: int = 2) -> None:
    """Write rows as `datasets.save_to_disk` lays them out."""
    rows_dir = directory / "dataset"
    rows_dir.mkdir(parents=True)
    names = [f"data-{shard:05d}-of-{shards:05d}.arrow" for shard in range(shards)]
    per_shard = -(-len(rows) // shards)
    for shard, name in enumerate(names):
        own = rows[shard * per_shard : (shard + 1) * per_shard]
        table = pa.table(
            {
                "input_ids": pa.array([ids for ids, _ in own], pa.list_(pa.int64())),
                "loss_mask": pa.array([mask for _, mask in own], pa.list_(pa.int64())),
                "seq_len": pa.array([len(ids) for ids, _ in own], pa.int64()),
            }
        )
        with pa.OSFile(str(rows_dir / name), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table, max_chunksize=batch)
    (rows_dir / "state.json").write_text(json.dumps({"_data_files": [{"filename": name} for name in names]}))


def make(directory: Path, shards: int = 1, batch: int = 2) -> Path:
    save_rows(directory, ROWS, shards, batch)
    write_index(directory, target="target", seq_len=16, inputs="abc", options={"seed": 1})
    return directory


@pytest.mark.parametrize(("shards", "batch"), [(1, 100), (1, 2), (3, 1), (2, 2)])
def test_rows_are_read_as_written_however_they_are_cut_into_files(shards: int, batch: int, tmp_path: Path) -> None:
    dataset = Dataset.open(make(tmp_path / "d", shards, batch))
    assert len(dataset) == 5
    assert dataset.lengths.tolist() == [3, 1, 2, 4, 1]
    for index, (ids, mask) in enumerate(ROWS):
        assert dataset.token_ids(index).tolist() == ids
        assert dataset.loss_mask(index).tolist() == mask
        assert dataset.token_ids(index).dtype == dataset.loss_mask(index).dtype == np.int64


def test_the_index_counts_samples_tokens_and_trained_tokens(tmp_path: Path) -> None:
    info = Dataset.open(make(tmp_path / "d")).info
    assert (info.num_samples, info.num_tokens, info.num_trained_tokens) == (5, 11, 6)
    assert (info.target, info.seq_len, info.inputs, info.options) == ("target", 16, "abc", {"seed": 1})


def test_the_fingerprint_is_of_the_rows_and_not_of_the_files(tmp_path: Path) -> None:
    def digest(numbers: list[int]) -> bytes:
        return hashlib.sha256(b"".join(number.to_bytes(8, "little") for number in numbers)).digest()

    lengths, ids = [len(ids) for ids, _ in ROWS], [i for ids, _ in ROWS for i in ids]
    masks = [m for _, mask in ROWS for m in mask]
    expected = hashlib.sha256(digest(lengths) + digest(ids) + digest(masks)).hexdigest()
    assert Dataset.open(make(tmp_path / "1")).fingerprint == expected
    assert Dataset.open(make(tmp_path / "2", shards=3, batch=1)).fingerprint == expected


def test_views_cannot_be_written_to_and_an_index_outside_is_refused(tmp_path: Path) -> None:
    dataset = Dataset.open(make(tmp_path / "d"))
    with pytest.raises(ValueError, match="read-only"):
        dataset.token_ids(0)[0] = 7
    for index in (-1, 5):
        with pytest.raises(IndexError):
            dataset.token_ids(index)


def test_what_is_missing_or_broken_is_named_with_the_command_that_makes_it(tmp_path: Path) -> None:
    def message(directory: Path) -> str:
        with pytest.raises(DataError) as caught:
            Dataset.open(directory)
        return str(caught.value)

    missing = tmp_path / "none"
    assert message(missing) == f"{missing}: does not exist: make it: dspark-train prepare --topology FILE"
    empty = tmp_path / "empty"
    empty.mkdir()
    assert message(empty) == f"{empty}: is no prepared data set: make it: dspark-train prepare --topology FILE"

    lengths = make(tmp_path / "lengths")
    np.save(lengths / "lengths.npy", np.array([3, 1, 2, 4, 2]))
    assert message(lengths) == (
        f"{lengths}: its parts do not belong together: 5 samples in dataset.json, 5 rows, 5 lengths: {AGAIN}"
    )
    (lengths / "lengths.npy").write_bytes(b"")
    assert message(lengths).startswith(f"{lengths}/lengths.npy: cannot be read (")

    info = make(tmp_path / "info")
    (info / "dataset.json").write_text('{"num_samples": 5}')
    assert message(info) == f"{info}/dataset.json: is broken (Field required): {AGAIN}"

    cut = make(tmp_path / "cut")
    arrow = cut / "dataset" / "data-00000-of-00001.arrow"
    arrow.write_bytes(arrow.read_bytes()[:-400])
    assert message(cut).startswith(f"{arrow}: is damaged (")
    arrow.unlink()
    assert message(cut).startswith(f"{arrow}: is damaged (")


def test_masks_as_long_as_something_else_are_refused(tmp_path: Path) -> None:
    save_rows(tmp_path / "d", [([1, 2], [1])])
    with pytest.raises(DataError, match="masks that are not as long as their token ids"):
        write_index(tmp_path / "d", target="t", seq_len=4, inputs="", options={})


def test_reading_imports_neither_torch_nor_datasets(tmp_path: Path) -> None:
    code = (
        "import sys; from dspark_train.data.dataset import Dataset; d = Dataset.open(sys.argv[1]); d.token_ids(0); "
        "print(sorted({'torch', 'datasets', 'transformers'} & set(sys.modules)))"
    )
    out = subprocess.run(
        [sys.executable, "-c", code, str(make(tmp_path / "d"))], capture_output=True, text=True, check=True, timeout=60
    )
    assert out.stdout.strip() == "[]"


@pytest.mark.torch
def test_what_datasets_itself_saves_is_read_back(tmp_path: Path) -> None:
    from datasets import Dataset as HFDataset

    columns = {"input_ids": [ids for ids, _ in ROWS], "loss_mask": [mask for _, mask in ROWS]}
    HFDataset.from_dict(columns).select([4, 1, 0]).save_to_disk(tmp_path / "dataset", num_shards=2)
    write_index(tmp_path, target="t", seq_len=4, inputs="", options={})
    dataset = Dataset.open(tmp_path)
    assert [dataset.token_ids(index).tolist() for index in range(3)] == [ROWS[index][0] for index in (4, 1, 0)]
