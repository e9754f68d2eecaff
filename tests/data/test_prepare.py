"""Preparation with speculators' own preprocessing; the rendering server is a tiny one in this process."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from dspark_train.data.conversation import Conversation, Message
from dspark_train.data.dataset import Dataset
from dspark_train.data.prepare import (
    Options,
    PreparationFailed,
    check_renders,
    prepare_dataset,
    work_directory,
    write_conversations,
)
from dspark_train.errors import UsageError
from tests.data.tiny_chat import BEGIN, END, FIRST_BYTE, render
from tests.data.tiny_server import TinyServer


def conversation(name: str, *texts: str) -> Conversation:
    messages = [Message("assistant" if index % 2 else "user", text) for index, text in enumerate(texts)]
    return Conversation(name, "chat", tuple(messages), "a.jsonl", 1)


def prepare(
    conversations: Sequence[Conversation], server: TinyServer, target: Path, out: Path, seq_len: int = 64, **more: Any
) -> Any:
    options = Options(str(target), seq_len, seed=1, **more)
    return prepare_dataset(conversations, options, out, render_endpoint=server.url, inputs="abc")


@pytest.mark.torch
def test_every_answer_becomes_a_sample_with_its_history_and_only_the_answer_is_trained(
    tiny_server: TinyServer, tokenizer_directory: Path, tmp_path: Path
) -> None:
    import torch

    tiny_server.answer = render
    out = tmp_path / "data"
    made = prepare([conversation("c0", "ab", "c", "d", "ef")], tiny_server, tokenizer_directory, out)
    dataset = Dataset.open(out)
    assert (len(dataset), made.info, made.dropped, made.num_cut) == (2, dataset.info, {}, 0)
    first, second = sorted(range(2), key=lambda index: dataset.lengths[index])
    a, b, c, d, e, f = (FIRST_BYTE + ord(letter) for letter in "abcdef")
    assert dataset.token_ids(first).tolist() == [BEGIN, 4, a, b, END, BEGIN, 5, c, END]
    assert dataset.loss_mask(first).tolist() == [0] * 7 + [1, 1]
    assert dataset.token_ids(second).tolist() == [*dataset.token_ids(first), BEGIN, 4, d, END, BEGIN, 5, e, f, END]
    assert dataset.loss_mask(second).tolist() == [0] * 15 + [1, 1, 1]
    assert torch.load(out / "token_freq.pt") == {c: 1, END: 2, e: 1, f: 1}
    assert (dataset.info.inputs, dataset.info.num_trained_tokens) == ("abc", 5)
    assert sorted(path.name for path in out.iterdir()) == [
        "conversations.jsonl",
        "dataset",
        "dataset.json",
        "lengths.npy",
        "prepare.log",
        "token_freq.pt",
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


@pytest.mark.torch
def test_the_order_follows_from_the_seed_and_a_second_making_replaces_the_first(
    tiny_server: TinyServer, tokenizer_directory: Path, tmp_path: Path
) -> None:
    tiny_server.answer = render
    given = [conversation(f"c{n}", f"question {n}", f"answer {n}") for n in range(20)]
    out = tmp_path / "data"
    first = prepare(given, tiny_server, tokenizer_directory, out).info.fingerprint
    assert prepare(given, tiny_server, tokenizer_directory, out).info.fingerprint == first
    assert prepare(given[:-1], tiny_server, tokenizer_directory, out).info.fingerprint != first
    assert len(Dataset.open(out)) == 19


@pytest.mark.torch
def test_what_is_dropped_or_cut_is_counted_with_its_reason(
    tiny_server: TinyServer, tokenizer_directory: Path, tmp_path: Path
) -> None:
    def answer(path: str, body: dict[str, Any]) -> tuple[int, object]:
        if body["messages"][0]["content"] == "odd":
            return 400, {"error": "no template for this"}
        return render(path, body)

    tiny_server.answer = answer
    given = [
        conversation("c0", "fine", "a long enough answer"),
        conversation("c1", "odd", "answer"),
        conversation("c2", "x" * 80, "beyond"),
        conversation("c3", "short", "a"),
        conversation("c4", "cut", "y" * 90),
    ]
    made = prepare(given, tiny_server, tokenizer_directory, tmp_path / "data", min_trained_tokens=4)
    assert made.info.num_samples == 2
    assert made.num_cut == 1
    assert made.dropped == {
        'InvalidResponseError: Render endpoint returned 400: {"error": "no template for this"}': 1,
        "fewer than 4 trained tokens within seq_len": 2,
    }


@pytest.mark.torch
def test_nothing_left_is_an_error_with_the_reasons_and_leaves_the_data_set_that_was_there(
    tiny_server: TinyServer, tokenizer_directory: Path, tmp_path: Path
) -> None:
    out = tmp_path / "data"
    tiny_server.answer = render
    given = [conversation(f"c{n}", "q", "a") for n in range(3)]
    prepare(given, tiny_server, tokenizer_directory, out)

    def answer(path: str, body: dict[str, Any]) -> tuple[int, object]:
        return render(path, body) if body["messages"][0]["content"] == "Hello" else (422, {"error": "no"})

    tiny_server.answer = answer
    with pytest.raises(PreparationFailed) as caught:
        prepare(given, tiny_server, tokenizer_directory, out)
    assert str(caught.value) == (
        "none of 3 conversations became a sample: InvalidResponseError: Render endpoint returned 422: "
        f'{{"error": "no"}} (3); log: {work_directory(out)}/prepare.log'
    )
    assert len(Dataset.open(out)) == 3


def test_a_server_that_does_not_render_is_told_apart(tiny_server: TinyServer) -> None:
    for status, expected in {
        403: f"the server at {tiny_server.url} does not render chats (HTTP 403): start it with --enable-scale-out, "
        "or as `vllm launch render`",
        500: f"the server at {tiny_server.url} cannot render: HTTP 500: {{}}",
    }.items():
        reply: tuple[int, object] = (status, {})
        tiny_server.answer = lambda path, body, reply=reply: reply  # type: ignore[misc]
        with pytest.raises(PreparationFailed) as caught:
            check_renders(tiny_server.url, "target")
        assert str(caught.value) == expected
    with pytest.raises(PreparationFailed, match=r"no server answers at http://127.0.0.1:1 \(ConnectError\)"):
        check_renders("http://127.0.0.1:1", "target")


def test_a_directory_that_is_no_data_set_is_not_touched(tmp_path: Path) -> None:
    options = Options("target", 64, seed=1)
    (tmp_path / "notes.txt").write_text("mine")
    for out, text in ((tmp_path, "holds something else than a data set"), (tmp_path / "notes.txt", "is a file")):
        with pytest.raises(UsageError, match=text):
            prepare_dataset([conversation("c0", "q", "a")], options, out, render_endpoint="http://127.0.0.1:1")


def test_turns_have_the_same_keys_in_the_file_that_speculators_reads(tmp_path: Path) -> None:
    thoughtful = Conversation("c1", "", (Message("user", "q"), Message("assistant", "a", "hm")), "a.jsonl", 2)
    file = tmp_path / "c.jsonl"
    write_conversations([conversation("c0", "q", "a"), thoughtful], file)
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert {tuple(turn) for line in lines for turn in line["conversations"]} == {
        ("role", "content", "reasoning_content")
    }
    assert lines[1]["conversations"][1]["reasoning_content"] == "hm"
    write_conversations([conversation("c0", "q", "a")], file)
    assert list(json.loads(file.read_text())["conversations"][0]) == ["role", "content"]
