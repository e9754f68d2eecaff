"""The prepared training set on disk: token ids and loss masks, memory-mapped. Read on every node of a run.

A directory: ``dataset/`` (arrow, as `datasets.save_to_disk` writes it), ``lengths.npy``, ``token_freq.pt`` (as
speculators writes it), ``dataset.json``. Imports neither torch nor `datasets`, so that opening takes milliseconds.
"""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, ValidationError

from dspark_train.errors import DataError, Problem

Int64s = npt.NDArray[np.int64]

ROWS, LENGTHS, TOKEN_FREQ, INFO = "dataset", "lengths.npy", "token_freq.pt", "dataset.json"
MAKE = "make it: dspark-train prepare --topology FILE"
MAKE_AGAIN = "make it again: dspark-train prepare --topology FILE --overwrite"


class DatasetInfo(BaseModel):
    """What ``dataset.json`` says. It is written last, so a directory that has it is complete."""

    model_config = ConfigDict(frozen=True)

    num_samples: int
    num_tokens: int
    num_trained_tokens: int
    """Tokens that the loss mask keeps."""
    target: str
    seq_len: int
    """Tokens of the longest sample, at most: what is longer was cut."""
    fingerprint: str
    """A hash of all lengths, token ids and masks, in order."""
    inputs: str = ""
    """A digest of what it was made from: conversations, target, options."""
    options: dict[str, Any] = {}
    """The options that `inputs` covers, to be read by people."""


class Dataset:
    """A data set opened for reading. Arrays of a row are read-only views of the mapped file; nothing is to be closed.

    lengths: tokens of each sample, int64.
    """

    def __init__(self, info: DatasetInfo, rows: _Rows) -> None:
        self.info = info
        self._rows = rows
        self.lengths: Int64s = rows.lengths()
        self.lengths.flags.writeable = False

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """Open and check that the parts belong together. Raises DataError, which says how to make what is missing."""
        directory = Path(path)
        info = read_info(directory)
        if info is None:
            text = "is no prepared data set" if directory.exists() else "does not exist"
            raise _fault(directory, text, MAKE)
        rows = _Rows(directory / ROWS)
        lengths = _read_lengths(directory / LENGTHS)
        if len(rows) != info.num_samples or not np.array_equal(rows.lengths(), lengths):
            text = f"its parts do not belong together: {info.num_samples} samples in {INFO}, {len(rows)} rows"
            raise _fault(directory, f"{text}, {len(lengths)} lengths", MAKE_AGAIN)
        return cls(info, rows)

    @property
    def fingerprint(self) -> str:
        """A hash of all token ids and masks; equal data sets have equal ones."""
        return self.info.fingerprint

    def __len__(self) -> int:
        return len(self._rows)

    def token_ids(self, index: int) -> Int64s:
        """Token ids of a sample, int64, ``lengths[index]`` of them. Raises IndexError."""
        return self._rows.row("input_ids", index)

    def loss_mask(self, index: int) -> Int64s:
        """1 where a token is trained on, else 0; as long as ``token_ids``. Raises IndexError."""
        return self._rows.row("loss_mask", index)


def read_info(directory: Path) -> DatasetInfo | None:
    """``dataset.json`` of a directory, None where there is none. Raises DataError where it is broken."""
    file = directory / INFO
    if not file.is_file():
        return None
    try:
        return DatasetInfo.model_validate_json(file.read_bytes())
    except ValidationError as error:
        raise _fault(file, f"is broken ({error.errors()[0]['msg']})", MAKE_AGAIN) from error


def write_index(directory: Path, *, target: str, seq_len: int, inputs: str, options: dict[str, Any]) -> DatasetInfo:
    """Add ``lengths.npy`` and ``dataset.json`` to a directory whose rows are there."""
    rows = _Rows(directory / ROWS)
    lengths = rows.lengths()
    np.save(directory / LENGTHS, lengths)
    info = DatasetInfo(
        num_samples=len(rows),
        num_tokens=int(lengths.sum()),
        num_trained_tokens=sum(int(values.sum()) for values in rows.values("loss_mask")),
        target=target,
        seq_len=seq_len,
        fingerprint=rows.fingerprint(),
        inputs=inputs,
        options=options,
    )
    (directory / INFO).write_text(info.model_dump_json(indent=2) + "\n", encoding="utf-8")
    return info


class _Rows:
    """The columns input_ids and loss_mask as arrays over the mapped arrow files, one a record batch."""

    def __init__(self, directory: Path) -> None:
        self._values: dict[str, list[Int64s]] = {"input_ids": [], "loss_mask": []}
        self._offsets: list[Int64s] = []
        self._starts = [0]
        for file in _arrow_files(directory):
            for batch in _batches(file):
                self._add(file, batch)

    def __len__(self) -> int:
        return self._starts[-1]

    def row(self, column: str, index: int) -> Int64s:
        if not 0 <= index < len(self):
            raise IndexError(f"sample {index} of a data set of {len(self)}")
        batch = bisect_right(self._starts, index) - 1
        start, end = self._offsets[batch][index - self._starts[batch] :][:2]
        return self._values[column][batch][start:end]

    def lengths(self) -> Int64s:
        return np.concatenate([np.diff(offsets) for offsets in self._offsets] or [np.zeros(0, np.int64)])

    def values(self, column: str) -> Iterator[Int64s]:
        """All values of a column, row after row, in pieces."""
        return iter(self._values[column])

    def fingerprint(self) -> str:
        parts = [hashlib.sha256(self.lengths().astype("<i8").tobytes())]
        for column in ("input_ids", "loss_mask"):
            parts.append(hashlib.sha256())
            for values in self.values(column):
                parts[-1].update(np.ascontiguousarray(values.astype("<i8", copy=False)).data)
        return hashlib.sha256(b"".join(part.digest() for part in parts)).hexdigest()

    def _add(self, file: Path, batch: Any) -> None:
        if not batch.num_rows:
            return
        columns = {name: _lists(file, batch, name) for name in self._values}
        if not np.array_equal(columns["input_ids"][0], columns["loss_mask"][0]):
            raise _fault(file, "has masks that are not as long as their token ids", MAKE_AGAIN)
        for name, (_, values) in columns.items():
            self._values[name].append(values)
        self._offsets.append(columns["input_ids"][0])
        self._starts.append(self._starts[-1] + batch.num_rows)


def _lists(file: Path, batch: Any, name: str) -> tuple[Int64s, Int64s]:
    """(offsets, values) of a column of lists; row i is ``values[offsets[i]:offsets[i + 1]]``."""
    try:
        column = batch.column(name)
        offsets = np.asarray(column.offsets).astype(np.int64)
        values = np.asarray(column.values).astype(np.int64, copy=False)[offsets[0] : offsets[-1]]
    except (KeyError, AttributeError) as error:
        raise _fault(file, f"has no lists of numbers called {name}", MAKE_AGAIN) from error
    values.flags.writeable = False
    return offsets - offsets[0], values


def _arrow_files(directory: Path) -> list[Path]:
    try:
        state = json.loads((directory / "state.json").read_text(encoding="utf-8"))
        return [directory / str(entry["filename"]) for entry in state["_data_files"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _fault(directory / "state.json", f"cannot be read ({error})", MAKE_AGAIN) from error


def _batches(file: Path) -> Iterator[Any]:
    import pyarrow as pa

    try:
        # not closed: the arrays are views of the map, which lives as long as they do
        yield from pa.ipc.open_stream(pa.memory_map(str(file)))
    except (OSError, pa.ArrowInvalid) as error:
        raise _fault(file, f"is damaged ({str(error).splitlines()[0]})", MAKE_AGAIN) from error


def _read_lengths(file: Path) -> Int64s:
    try:
        return np.asarray(np.load(file, allow_pickle=False), dtype=np.int64)
    except (OSError, ValueError, EOFError) as error:
        raise _fault(file, f"cannot be read ({error})", MAKE_AGAIN) from error


def _fault(path: Path, text: str, remedy: str) -> DataError:
    return DataError([Problem(str(path), 0, "", text, remedy)])
