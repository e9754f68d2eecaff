"""Rows of parquet and arrow files, and the files of a data set directory. Reads with pyarrow, never with `datasets`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dspark_train.errors import DataError, Problem

PARQUET = b"PAR1"
ARROW_FILE = b"ARROW1"
ARROW_STREAM = b"\xff\xff\xff\xff"
READABLE = (".parquet", ".arrow", ".jsonl", ".json")
NUM_ROWS_AT_ONCE = 1000


def is_table(head: bytes) -> bool:
    """Whether these are the first bytes of a parquet or arrow file."""
    return head.startswith((PARQUET, ARROW_FILE, ARROW_STREAM))


def files_of(directory: Path) -> list[Path]:
    """The data files of a directory, in order: of `Dataset.save_to_disk`, or all parquet, arrow and JSON files in it.

    Of a `DatasetDict` the split train, or the only one. Raises DataError.
    """
    if (directory / "dataset_dict.json").is_file():
        return files_of(directory / _split(directory))
    if (directory / "state.json").is_file():
        return _saved_files(directory)
    for suffix in READABLE:
        if found := sorted(directory.rglob(f"*{suffix}")):
            return found
    raise _fault(directory, f"holds no {', '.join(READABLE)} file", "name a file, or a data set directory")


def read_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """(1-based row, row) of a parquet or arrow file. Raises DataError on a damaged file."""
    import pyarrow as pa

    row = 0
    try:
        for batch in _batches(path):
            for value in batch.to_pylist():
                row += 1
                yield row, value
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, UnicodeDecodeError) as error:
        reason = str(error).splitlines()[0]
        raise _fault(path, f"is damaged after row {row} ({reason})", "get the file again") from error
    if not row:
        raise _fault(path, "holds no rows", "get the file again, or leave it out")


def _batches(path: Path) -> Iterator[Any]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    with path.open("rb") as handle:
        head = handle.read(len(ARROW_FILE))
    if head.startswith(PARQUET):
        with pq.ParquetFile(path) as parquet:
            yield from parquet.iter_batches(NUM_ROWS_AT_ONCE)
        return
    with pa.memory_map(str(path)) as source:
        if head.startswith(ARROW_FILE):
            reader = pa.ipc.open_file(source)
            yield from (reader.get_batch(index) for index in range(reader.num_record_batches))
        else:
            yield from pa.ipc.open_stream(source)


def _split(directory: Path) -> str:
    splits = _state(directory / "dataset_dict.json").get("splits") or []
    if "train" in splits:
        return "train"
    if len(splits) != 1:
        raise _fault(directory, f"has the splits {', '.join(splits) or 'none'}", f"name one: {directory}/SPLIT")
    return str(splits[0])


def _saved_files(directory: Path) -> list[Path]:
    entries = _state(directory / "state.json").get("_data_files") or []
    files = [directory / str(entry["filename"]) for entry in entries if "filename" in entry]
    if missing := next((file for file in files if not file.is_file()), None):
        raise _fault(missing, f"does not exist, though {directory / 'state.json'} names it", "copy the whole directory")
    if not files:
        raise _fault(directory / "state.json", "names no data files", "copy the whole directory")
    return files


def _state(path: Path) -> dict[str, Any]:
    try:
        state = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise _fault(path, f"cannot be read ({error})", "copy the whole directory") from error
    return state if isinstance(state, dict) else {}


def _fault(path: Path, text: str, remedy: str) -> DataError:
    return DataError([Problem(str(path), 0, "", text, remedy)])
