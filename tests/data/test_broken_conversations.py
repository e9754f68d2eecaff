"""Broken conversation files, each with the exact error that a user sees. `{f}` stands for the file's path."""

import json
from pathlib import Path

import pytest

from dspark_train.data.conversations import read_conversations
from dspark_train.data.records import MAX_LINE_BYTES
from dspark_train.errors import DataError

TURNS = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]
GOOD = json.dumps({"messages": TURNS}).encode()
MANY_GOOD = b"\n".join([GOOD] * 39)


def record(**fields: object) -> bytes:
    return json.dumps(fields).encode()


WHOLE_FILE = {
    "empty": ("a.jsonl", b"", "{f}: is empty: get the file again, or leave it out"),
    "only empty lines": (
        "a.jsonl",
        b"\n  \n\n",
        "{f}: holds only empty lines: get the file again, or leave it out",
    ),
    "latin-1": (
        "a.jsonl",
        GOOD + b"\n" + '{"prompt": "Où ?", "response": "Là"}'.encode("latin-1"),
        "{f}:2: is not UTF-8: byte 0xf9 at byte offset {o}: "
        "convert it, such as with: iconv -f WINDOWS-1252 -t UTF-8 {f} > NEW",
    ),
    "UTF-16 with a byte order mark": (
        "a.jsonl",
        GOOD.decode().encode("utf-16"),
        "{f}: is UTF-16, not UTF-8, from byte offset 0 on: convert it: iconv -f UTF-16 -t UTF-8 {f} > NEW",
    ),
    "UTF-16 without one": (
        "a.jsonl",
        GOOD.decode().encode("utf-16-be"),
        "{f}: is UTF-16, not UTF-8, from byte offset 0 on: convert it: iconv -f UTF-16 -t UTF-8 {f} > NEW",
    ),
    "only NUL bytes": ("a.jsonl", bytes(5000), "{f}: begins with nothing but NUL bytes: get the file again"),
    "compressed": ("a.jsonl.gz", b"\x1f\x8b\x08\x00rest", "{f}: is compressed (gzip): unpack it first"),
    "array cut off in a string": (
        "a.json",
        b"[\n" + GOOD + b",\n" + GOOD + b",\n" + GOOD[:-6],
        "{f}:4: record 3 of the JSON array, which begins here, is cut off in the middle of a string: "
        "get the file again; what follows cannot be read",
    ),
    "array cut off between records": (
        "a.json",
        b"[\n" + GOOD + b",\n",
        "{f}:3: record 2 of the JSON array, which begins here, is cut off before its end: "
        "get the file again; what follows cannot be read",
    ),
    "array without a comma": (
        "a.json",
        b"[" + GOOD + b"\n" + GOOD + b"]",
        "{f}:1: record 1 of the JSON array, which begins here, is not JSON (Expecting ',' delimiter at column 1): "
        "get the file again; what follows cannot be read",
    ),
    "empty array": ("a.json", b"[ ]", "{f}: holds an empty array: get the file again, or leave it out"),
    "two arrays": (
        "a.json",
        b"[" + GOOD + b"]\n[" + GOOD + b"]",
        "{f}:2: text follows the end of the JSON array: write one array a file, or one object a line",
    ),
    "object over several lines, cut off": (
        "a.json",
        b'{\n "messages": [\n',
        "{f}:3: is cut off before its end: get the file again, or mend it",
    ),
    "parquet cut off": (
        "a.parquet",
        b"PAR1 and then nothing",
        "{f}: is damaged after row 0 (Parquet magic bytes not found in footer. "
        "Either the file is corrupted or this is not a parquet file.): get the file again",
    ),
    "arrow stream cut off": (
        "a.arrow",
        b"\xff\xff\xff\xff\x10\x00\x00\x00short",
        "{f}: is damaged after row 0 (Expected to read 16 metadata bytes, but only read 5): get the file again",
    ),
}

ONE_RECORD = {
    "cut-off line": (GOOD[:-6], "is cut off in the middle of a string: mend or remove the line"),
    "cut-off character": (
        '{"prompt": "Où'.encode()[:-1],
        "is cut off inside a character: get the file again, or remove the line",
    ),
    "broken JSON": (
        b'{"messages" []}',
        "is not JSON (Expecting ':' delimiter at column 13): mend or remove the line",
    ),
    "nested too deeply": (b'{"a":' + b"[" * 200_000, "is nested too deeply: mend or remove the line"),
    "a number too long": (
        b'{"id": ' + b"9" * 5000 + b"}",
        "holds a number with too many digits: mend or remove the line",
    ),
    "NUL bytes": (
        GOOD[:20] + bytes(3) + GOOD[20:],
        "holds NUL bytes: its writer crashed or the disk was full: write it again",
    ),
    "too long": (
        record(prompt="x" * MAX_LINE_BYTES, response="y"),
        "is longer than 16 MiB: one record a line: split it",
    ),
    "not an object": (b'"Hi"', "is text, not an object: write one {...} a record"),
    "no known shape": (
        record(text="Hi", label=3),
        "has no known shape: its keys are label, text: known are messages [{role, content}], conversations "
        "[{from, value}], or prompt and response (instruction and output, question and answer)",
    ),
    "no assistant turn": (
        record(messages=TURNS[:1]),
        "has no assistant turn after a user turn: add an answer, or let the target write it (--regenerate)",
    ),
    "assistant turn before any user turn": (
        record(messages=TURNS[::-1]),
        "has no assistant turn after a user turn: add an answer, or let the target write it (--regenerate)",
    ),
    "prompt without response": (
        record(prompt="Hi"),
        "has no assistant turn after a user turn: add an answer, or let the target write it (--regenerate)",
    ),
    "no user turn": (
        record(messages=TURNS[1:]),
        "has no user turn: add the user's message, or remove the record",
    ),
    "no turns": (record(messages=[]), "messages is empty: add the turns, or remove the record"),
    "turns that are text": (record(conversations="Hi"), "conversations is text, not a list: write a list of turns"),
    "a turn that is text": (
        record(messages=["Hi"]),
        "messages[0] is text, not an object: write {role, content}",
    ),
    "empty content": (
        record(messages=[TURNS[0], {"role": "assistant", "content": "  "}]),
        "messages[1].content is empty: write the text, or remove the record",
    ),
    "missing value": (
        record(conversations=[{"from": "human"}]),
        "conversations[0].content is missing: write the text, or remove the record",
    ),
    "content that is a number": (
        record(messages=[{"role": "user", "content": 3}]),
        "messages[0].content is a number, not text: write a string",
    ),
    "an image": (
        record(messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]),
        "messages[0].content[0] is a part of type image_url: only text is read: remove the record",
    ),
    "unknown role": (
        record(conversations=[{"from": "narrator", "value": "Once"}]),
        "conversations[0].from is 'narrator', which is no known role: "
        "use system, user (human), assistant (gpt) or tool",
    ),
    "missing role": (
        record(messages=[{"content": "Hi"}]),
        "messages[0].role is missing: use system, user (human), assistant (gpt) or tool",
    ),
    "tool calls": (
        record(messages=[TURNS[0], {"role": "assistant", "content": "", "tool_calls": [{"id": "1"}]}]),
        "messages[1].tool_calls are not read: remove the record, or prepare it with speculators",
    ),
    "half a surrogate pair": (
        b'{"prompt": "\\ud83d", "response": "Hello"}',
        "prompt holds half of a surrogate pair: repair the character, or remove the record",
    ),
}


@pytest.mark.parametrize("name", WHOLE_FILE)
def test_a_fault_of_the_whole_file_refuses_it(name: str, tmp_path: Path) -> None:
    file_name, content, expected = WHOLE_FILE[name]
    file = tmp_path / file_name
    file.write_bytes(content)
    with pytest.raises(DataError) as caught:
        read_conversations([file])
    assert str(caught.value) == expected.format(f=file, o=content.find(b"\xf9"))
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("name", ONE_RECORD)
def test_a_fault_of_one_record_skips_it_and_names_its_line(name: str, tmp_path: Path) -> None:
    content, expected = ONE_RECORD[name]
    file = tmp_path / "a.jsonl"
    file.write_bytes(MANY_GOOD + b"\n\n" + content)
    reading = read_conversations([file])
    assert [str(problem) for problem in reading.skipped] == [f"{file}:41: {expected}"]
    assert len(reading.conversations) == 39


def test_an_id_used_twice_skips_the_second_record(tmp_path: Path) -> None:
    first, second = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    first.write_bytes(record(id=7, messages=TURNS) + b"\n" + MANY_GOOD)
    second.write_bytes(record(id="7", messages=TURNS))
    reading = read_conversations([first, second])
    assert [str(problem) for problem in reading.skipped] == [
        f"{second}:1: id '7' was already used at {first}:1: give every record an id of its own"
    ]


def test_too_many_broken_records_refuse_the_input_and_show_the_first(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_bytes(b"\n".join([GOOD] * 70 + [b"{}"] * 30))
    with pytest.raises(DataError) as caught:
        read_conversations([file])
    lines = str(caught.value).splitlines()
    assert lines[0] == (
        f"{file}: 30 of 100 records failed, more than --max-bad-frac 0.05 allows: "
        "mend them, or raise --max-bad-frac to leave them out"
    )
    assert lines[1].startswith(f"{file}:71: has no known shape: its keys are none")
    assert len(lines) == 21
    assert len(read_conversations([file], max_bad_frac=0.3).conversations) == 70


def test_records_that_are_all_broken_refuse_the_input_whatever_the_share(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_bytes(b"{}")
    with pytest.raises(DataError, match="1 of 1 records failed"):
        read_conversations([file], max_bad_frac=1)


def test_faults_of_all_files_are_reported_at_once(tmp_path: Path) -> None:
    empty, missing, directory = tmp_path / "a.jsonl", tmp_path / "none.jsonl", tmp_path / "d"
    empty.write_bytes(b"")
    directory.mkdir()
    with pytest.raises(DataError) as caught:
        read_conversations([empty, missing, directory])
    assert str(caught.value).splitlines() == [
        f"{empty}: is empty: get the file again, or leave it out",
        f"{missing}: does not exist: check the path",
        f"{directory}: holds no .parquet, .arrow, .jsonl, .json file: name a file, or a data set directory",
    ]
