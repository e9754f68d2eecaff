"""Records out of files: JSON lines, a JSON array, parquet and arrow tables. What a file is, its first bytes say.

A fault of the whole file (missing, empty, undecodable, a cut-off array) raises DataError; a fault of one record is
yielded in its place. Nothing here knows what a conversation looks like.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from dspark_train.data import tables
from dspark_train.errors import DataError, Problem

MAX_LINE_BYTES = 16 * 2**20
"""A longer line is no conversation, but a file without line ends: it is skipped, not held in memory."""
NUM_SNIFFED_BYTES = 4096
BOM = b"\xef\xbb\xbf"
GET_AGAIN = "get the file again"

_OTHER_ENCODINGS = {b"\xff\xfe\x00\x00": "UTF-32", b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16"}
_PACKED = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"PK\x03\x04": "zip", b"BZh": "bzip2", b"\xfd7zXZ": "xz"}


@dataclass(frozen=True)
class Record:
    """A value read from a file. line: 1-based line on which it begins, or the row of a table."""

    line: int
    value: object


def expand(path: Path) -> list[Path]:
    """The files that ``path`` names: itself, or those of a data set directory. Raises DataError."""
    if not path.exists():
        raise _file_fault(path, 0, "does not exist", "check the path")
    return tables.files_of(path) if path.is_dir() else [path]


def read_records(path: Path) -> Iterator[Record | Problem]:
    """Every record of one file, in order. Raises DataError for a fault of the file."""
    try:
        with path.open("rb") as handle:
            head = handle.read(NUM_SNIFFED_BYTES)
            handle.seek(0)
            _check_head(path, head)
            if tables.is_table(head):
                for row, value in tables.read_rows(path):
                    yield Record(row, value)
            elif _is_array(head):
                yield from _array(path, handle.read())
            elif path.suffix == ".json" and not _first_line_is_whole(handle):
                yield _document(path, handle.read())
            else:
                yield from _lines(path, handle)
    except OSError as error:
        raise _file_fault(path, 0, f"cannot be read ({error.strerror})", "check its permissions and disk") from error


def _check_head(path: Path, head: bytes) -> None:
    if not head:
        raise _file_fault(path, 0, "is empty", f"{GET_AGAIN}, or leave it out")
    for magic, name in _PACKED.items():
        if head.startswith(magic):
            raise _file_fault(path, 0, f"is compressed ({name})", "unpack it first")
    encoding = next((name for magic, name in _OTHER_ENCODINGS.items() if head.startswith(magic)), "")
    if not head.strip(b"\0"):
        raise _file_fault(path, 0, "begins with nothing but NUL bytes", GET_AGAIN)
    if not encoding and not tables.is_table(head) and _is_half_nul(head[:64]):
        encoding = "UTF-16"
    if encoding:
        remedy = f"convert it: iconv -f {encoding} -t UTF-8 {path} > NEW"
        raise _file_fault(path, 0, f"is {encoding}, not UTF-8, from byte offset 0 on", remedy)


def _is_half_nul(head: bytes) -> bool:
    """Whether every other byte is mostly NUL: UTF-16 without a byte order mark."""
    return any(half.count(0) > len(half) // 2 for half in (head[0::2], head[1::2]))


def _is_array(head: bytes) -> bool:
    return head.removeprefix(BOM).lstrip().startswith(b"[")


def _lines(path: Path, handle: BinaryIO) -> Iterator[Record | Problem]:
    """One JSON value a line; empty lines are passed over."""
    offset, num_found, line = 0, 0, 0
    while raw := handle.readline(MAX_LINE_BYTES + 1):
        line += 1
        size = len(raw)
        if size > MAX_LINE_BYTES:
            while raw and not raw.endswith(b"\n"):
                raw = handle.readline(MAX_LINE_BYTES)
                size += len(raw)
            text = f"is longer than {MAX_LINE_BYTES // 2**20} MiB"
            found: Record | Problem | None = Problem(str(path), line, "", text, "one record a line: split it")
        else:
            found = _line(path, line, raw, offset)
        offset += size
        if found is not None:
            num_found += 1
            yield found
    if not num_found:
        raise _file_fault(path, 0, "holds only empty lines", f"{GET_AGAIN}, or leave it out")


def _line(path: Path, line: int, raw: bytes, offset: int) -> Record | Problem | None:
    if offset == 0:
        offset, raw = (len(BOM), raw[len(BOM) :]) if raw.startswith(BOM) else (0, raw)
    if not raw.strip():
        return None
    if b"\0" in raw:
        return Problem(
            str(path), line, "", "holds NUL bytes", "its writer crashed or the disk was full: write it again"
        )
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        if error.reason == "unexpected end of data":  # a character cut in two: only the last line can end so
            return Problem(str(path), line, "", "is cut off inside a character", f"{GET_AGAIN}, or remove the line")
        raise _undecodable(path, line, offset, raw, error) from error
    try:
        return Record(line, json.loads(text))
    except (ValueError, RecursionError) as error:
        return Problem(str(path), line, "", _json_fault(error, text), "mend or remove the line")


def _array(path: Path, raw: bytes) -> Iterator[Record]:
    """The elements of a JSON array, each with the line on which it begins.

    After a fault inside the array the next element cannot be found, so such a file is refused.
    """
    text = _decode(path, raw)
    decoder = json.JSONDecoder()
    at = _skip_space(text, text.index("[") + 1)
    line, counted, num_read = 1, 0, 0
    while text[at : at + 1] != "]":
        line, counted = line + text.count("\n", counted, at), at
        try:
            value, at = decoder.raw_decode(text, at)
            at = _next_element(text, at)
        except (ValueError, RecursionError) as error:
            what = f"record {num_read + 1} of the JSON array, which begins here, {_json_fault(error, text)}"
            raise _file_fault(path, line, what, f"{GET_AGAIN}; what follows cannot be read") from error
        num_read += 1
        yield Record(line, value)
    if not num_read:
        raise _file_fault(path, 0, "holds an empty array", f"{GET_AGAIN}, or leave it out")
    rest = _skip_space(text, at + 1)
    if rest < len(text):
        line += text.count("\n", counted, rest)
        raise _file_fault(
            path, line, "text follows the end of the JSON array", "write one array a file, or one object a line"
        )


def _next_element(text: str, at: int) -> int:
    """Where the next element begins, or the closing bracket. Raises JSONDecodeError."""
    at = _skip_space(text, at)
    if text[at : at + 1] == "]":
        return at
    if text[at : at + 1] != ",":
        raise json.JSONDecodeError("Expecting ',' delimiter", text, at)
    return _skip_space(text, at + 1)


def _skip_space(text: str, at: int) -> int:
    while at < len(text) and text[at] in " \t\r\n":
        at += 1
    return at


def _first_line_is_whole(handle: BinaryIO) -> bool:
    """Whether the file is JSON lines: its first line that is not empty is a value by itself. Rewinds."""
    try:
        first = next((raw for raw in handle if raw.removeprefix(BOM).strip()), b"")
        json.loads(first)
        return True
    except (ValueError, RecursionError):
        return False
    finally:
        handle.seek(0)


def _document(path: Path, raw: bytes) -> Record:
    text = _decode(path, raw)
    try:
        return Record(1, json.loads(text))
    except (ValueError, RecursionError) as error:
        line = error.lineno if isinstance(error, json.JSONDecodeError) else 1
        raise _file_fault(path, line, _json_fault(error, text), f"{GET_AGAIN}, or mend it") from error


def _decode(path: Path, raw: bytes) -> str:
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        skipped = len(BOM) if raw.startswith(BOM) else 0
        raise _undecodable(
            path, raw.count(b"\n", 0, skipped + error.start) + 1, skipped, raw[skipped:], error
        ) from error


def _undecodable(path: Path, line: int, offset: int, raw: bytes, error: UnicodeDecodeError) -> DataError:
    text = f"is not UTF-8: byte 0x{raw[error.start]:02x} at byte offset {offset + error.start}"
    return _file_fault(path, line, text, f"convert it, such as with: iconv -f WINDOWS-1252 -t UTF-8 {path} > NEW")


def _json_fault(error: ValueError | RecursionError, text: str) -> str:
    """What is wrong with a piece of JSON, telling a cut-off end from a fault in the middle."""
    if isinstance(error, RecursionError):
        return "is nested too deeply"
    if not isinstance(error, json.JSONDecodeError):
        return "holds a number with too many digits"
    if error.msg.startswith("Unterminated string"):
        return "is cut off in the middle of a string"
    if error.pos >= len(text.rstrip()) or (error.msg.startswith("Invalid \\") and error.pos >= len(text.rstrip()) - 6):
        return "is cut off before its end"
    return f"is not JSON ({error.msg} at column {error.colno})"


def _file_fault(path: Path, line: int, text: str, remedy: str) -> DataError:
    return DataError([Problem(str(path), line, "", text, remedy)])
