"""The journal survives crashes, and readers see whole events only."""

from __future__ import annotations

import json
import re
import threading
from pathlib import Path

from dspark_train.controller.journal import Journal, follow, read


def test_an_event_is_one_line_with_time_kind_who_text_and_data(tmp_path: Path) -> None:
    path = tmp_path / "run" / "events.jsonl"
    Journal(path).write("engine.ready", "engine-1.0", "the probe is right\nand fast", tokens=12, where=Path("/a"))
    (line,) = path.read_text().splitlines()
    event = json.loads(line)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", event.pop("at"))
    assert event == {
        "kind": "engine.ready",
        "who": "engine-1.0",
        "text": "the probe is right\nand fast",
        "tokens": 12,
        "where": "/a",
    }


def test_a_torn_last_line_is_left_out_by_readers_and_kept_apart_by_the_next_writer(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    Journal(path).write("a", "x", "first")
    with path.open("ab") as file:
        file.write(b'{"at": "2026", "kind": "b", "te')
    assert [event["kind"] for event in read(path)] == ["a"]
    Journal(path).write("c", "x", "after the crash")
    assert [event["kind"] for event in read(path)] == ["a", "journal.torn", "c"]


def test_there_is_nothing_to_read_before_the_first_event(tmp_path: Path) -> None:
    assert read(tmp_path / "events.jsonl") == []


def test_several_writers_never_mix_their_lines(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    journals = [Journal(path) for _ in range(4)]
    threads = [
        threading.Thread(target=lambda j=j, i=i: [j.write("k", f"w{i}", "t" * 500, n=n) for n in range(50)])
        for i, j in enumerate(journals)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    events = read(path)
    assert len(events) == 200
    assert [e["n"] for e in events if e["who"] == "w2"] == list(range(50))


def test_follow_yields_what_comes_later_and_ends_when_told(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    journal = Journal(path)
    journal.write("a", "x", "1")
    seen: list[str] = []
    for event in follow(path, lambda: "b" in seen, poll_s=0):
        seen.append(event["kind"])
        if event["kind"] == "a":
            journal.write("b", "x", "2")
            journal.write("c", "x", "3")
    assert seen == ["a", "b", "c"]


def test_follow_joins_a_line_that_comes_in_two_halves(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(b'{"kind": "a", ')
    looks = iter([False, True])

    def second_half_comes() -> bool:
        over = next(looks)
        if over:
            with path.open("ab") as file:
                file.write(b'"text": "t"}\n')
        return over

    assert list(follow(path, second_half_comes, poll_s=0)) == [{"kind": "a", "text": "t"}]
