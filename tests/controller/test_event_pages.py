"""The journal in pages and as a stream: nothing is told twice, nothing is left out, whatever the id."""

import asyncio
import json

from dspark_train.controller import event_pages


def journal(tmp_path, num=50):
    path = tmp_path / "events.jsonl"
    path.write_text("".join(json.dumps({"kind": f"k{n}", "text": "x" * n}) + "\n" for n in range(num)))
    return path


def kinds(page):
    return [event["kind"] for event in page.events]


def test_pages_join_without_a_gap_or_a_double(tmp_path):
    path, ident, seen = journal(tmp_path), 0, []
    while True:
        page = event_pages.after(path, ident, num_max=7)
        seen += kinds(page)
        ident = page.next_id
        if not page.has_more:
            break
    assert seen == [f"k{n}" for n in range(50)]
    assert event_pages.after(path, ident, 7).events == []


def test_an_id_that_is_no_lines_end_goes_on_with_the_next_line(tmp_path):
    path = journal(tmp_path)
    first = event_pages.after(path, 0, 1).next_id
    assert kinds(event_pages.after(path, first - 3, 2)) == ["k1", "k2"]
    assert kinds(event_pages.after(path, -5, 1)) == ["k0"]
    assert event_pages.after(path, 10**9, 5).events == []


def test_the_newest_are_read_from_the_end(tmp_path):
    path = journal(tmp_path, 3000)
    page = event_pages.last(path, 3)
    assert kinds(page) == ["k2997", "k2998", "k2999"]
    assert page.next_id == path.stat().st_size
    before = event_pages.last(path, 4).events[0]["id"]
    assert page.events == event_pages.after(path, before, 3).events
    assert event_pages.last(path, 0).events == []
    assert event_pages.last(tmp_path / "none", 3).events == []


def test_among_the_newest_what_is_torn_does_not_count(tmp_path):
    path = tmp_path / "events.jsonl"
    path.write_text('{"kind": "a"}\n{"kind": "b"}\nnonsense\n\n{"kind": "c"}\n{"kin')
    page = event_pages.last(path, 2)
    assert kinds(page) == ["b", "c"]
    assert page.events == event_pages.after(path, 14, 2).events
    assert page.next_id == path.stat().st_size - len('{"kin')


def test_a_torn_line_is_left_out_until_it_is_whole_and_nonsense_for_good(tmp_path):
    path = tmp_path / "events.jsonl"
    path.write_text('{"kind": "a"}\nnonsense\n{"kind": "b"}\n{"kin')
    page = event_pages.after(path, 0, 10)
    assert kinds(page) == ["a", "b"]
    with path.open("a") as file:
        file.write('d": "c"}\n')
    assert len(event_pages.after(path, page.next_id, 10).events) == 1


def test_a_line_longer_than_a_page_is_told_all_the_same(tmp_path):
    path = tmp_path / "events.jsonl"
    path.write_text(json.dumps({"kind": "long", "text": "x" * 2 * event_pages.PAGE_BYTES}) + '\n{"kind": "then"}\n')
    page = event_pages.after(path, 0, 10)
    assert kinds(page) == ["long"]
    assert kinds(event_pages.after(path, page.next_id, 10)) == ["then"]


def test_a_stream_tells_what_comes_and_says_something_when_nothing_does(tmp_path, monkeypatch):
    path = journal(tmp_path, 2)
    monkeypatch.setattr(event_pages, "HEARTBEAT_S", 0.0)

    async def first(num):
        said = []
        async for text in event_pages.stream(path, 0, poll_s=0.0):
            said.append(text)
            if len(said) == num:
                return said
        return said

    said = asyncio.run(first(4))
    assert said[0].startswith("retry:")
    assert [json.loads(text.split("data: ")[1])["kind"] for text in said[1:3]] == ["k0", "k1"]
    assert said[3].startswith(":")
