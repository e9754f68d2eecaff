"""Conversation files into normal form: every broken record is reported by file and line.

The policy (docs/data.md): a fault of a whole file refuses it; a fault of a record skips that record, and refuses the
input where more than ``max_bad_frac`` of its records are bad, or none is left.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dspark_train.data.conversation import Conversation
from dspark_train.data.records import Record, expand, read_records
from dspark_train.data.shapes import Rejected, messages_of
from dspark_train.errors import DataError, Problem

MAX_BAD_FRAC = 0.05
NUM_PROBLEMS_SHOWN = 20


@dataclass(frozen=True)
class Reading:
    """What was read, in order, and the records that were skipped."""

    conversations: tuple[Conversation, ...]
    skipped: tuple[Problem, ...]


def read_conversations(
    paths: Iterable[str | Path], *, regenerate: bool = False, max_bad_frac: float = MAX_BAD_FRAC
) -> Reading:
    """Read files and data set directories.

    regenerate: the target will write the answers, so records need none. Raises DataError with the faults of all files.
    """
    kept: list[Conversation] = []
    skipped: list[Problem] = []
    faults: list[Problem] = []
    seen: dict[str, str] = {}
    for path in paths:
        try:
            for file in expand(Path(path)):
                _read_file(file, regenerate, seen, kept, skipped)
        except DataError as error:
            faults.extend(error.problems)
    if faults:
        raise DataError(faults)
    check_share(len(kept), skipped, max_bad_frac)
    return Reading(tuple(kept), tuple(skipped))


def _read_file(
    file: Path, regenerate: bool, seen: dict[str, str], kept: list[Conversation], skipped: list[Problem]
) -> None:
    for record in read_records(file):
        found = record if isinstance(record, Problem) else _conversation(file, record, regenerate, seen)
        if isinstance(found, Problem):
            skipped.append(found)
        else:
            kept.append(found)


def _conversation(file: Path, record: Record, regenerate: bool, seen: dict[str, str]) -> Conversation | Problem:
    try:
        messages = messages_of(record.value, regenerate=regenerate)
        value = record.value if isinstance(record.value, Mapping) else {}
        where = f"{file}:{record.line}"
        given = value.get("id")
        name = where if given is None or given == "" else str(given)
        if name in seen:
            raise Rejected("id", f"{name!r} was already used at {seen[name]}", "give every record an id of its own")
    except Rejected as rejected:
        return Problem(str(file), record.line, rejected.key, rejected.text, rejected.remedy)
    seen[name] = where
    domain = value.get("domain")
    return Conversation(name, domain if isinstance(domain, str) else "", messages, str(file), record.line)


def check_share(num_kept: int, bad: Sequence[Problem], max_bad_frac: float) -> None:
    """Refuse where too many records went wrong, or none is left. Raises DataError with the first problems."""
    num_records = num_kept + len(bad)
    if num_kept and len(bad) <= max_bad_frac * num_records:
        return
    if not num_records:
        raise DataError([Problem("conversations", 0, "", "no file was named", "give --data, or data.source")])
    files = sorted({problem.file for problem in bad})
    where = files[0] if len(files) == 1 else f"{files[0]} and {len(files) - 1} more"
    text = f"{len(bad)} of {num_records} records failed, more than --max-bad-frac {max_bad_frac:g} allows"
    summary = Problem(where, 0, "", text, "mend them, or raise --max-bad-frac to leave them out")
    raise DataError([summary, *bad[:NUM_PROBLEMS_SHOWN]])
