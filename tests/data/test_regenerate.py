import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from dspark_train.data import regenerate as module
from dspark_train.data.conversation import Conversation, Message
from dspark_train.data.regenerate import Regenerated, RegenerationFailed, Sampling, Server, regenerate
from tests.data.tiny_server import TinyServer

SAMPLING = Sampling(temperature=0.5, max_tokens=8, seed=3)
SYSTEM = Message("system", "Be brief.")


def user(text: str) -> Message:
    return Message("user", text)


def assistant(text: str) -> Message:
    return Message("assistant", text)


def conversation(name: str, *messages: Message) -> Conversation:
    return Conversation(name, "chat", messages or (user(name), assistant("old")), "a.jsonl", int(name[1:]) + 1)


def reply(text: str | None, finish: str = "stop") -> tuple[int, object]:
    message = {"role": "assistant", "content": text}
    return 200, {"choices": [{"message": message, "finish_reason": finish}], "usage": {"completion_tokens": 2}}


def echo(path: str, body: dict[str, Any]) -> tuple[int, object]:
    """Answers with the number of turns and the last one's text."""
    assert path == "/v1/chat/completions"
    return reply(f"{len(body['messages'])} {body['messages'][-1]['content']}")


def run(
    conversations: Sequence[Conversation], server: TinyServer, answers: Path, sampling: Sampling = SAMPLING
) -> Regenerated:
    return asyncio.run(regenerate(conversations, Server(server.url, "target", 4, 5.0, 3), sampling, answers))


@pytest.fixture(autouse=True)
def _no_back_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BACK_OFF_S", 0.0)


def test_every_user_turn_is_answered_anew_with_the_new_history(tiny_server: TinyServer, tmp_path: Path) -> None:
    tiny_server.answer = echo
    given = conversation("c0", SYSTEM, user("a"), assistant("old"), user("b"), user("c"), assistant("old"), user("d"))
    (made,) = run([given], tiny_server, tmp_path / "answers").conversations
    assert made.messages == (
        SYSTEM,
        user("a"),
        assistant("2 a"),
        user("b"),
        user("c"),
        assistant("5 c"),
        user("d"),
        assistant("7 d"),
    )
    assert (made.id, made.domain, made.file, made.line) == ("c0", "chat", "a.jsonl", 1)


def test_sampling_is_passed_on_and_every_answer_has_a_seed_of_its_own(tiny_server: TinyServer, tmp_path: Path) -> None:
    tiny_server.answer = echo
    given = [conversation(f"c{n}", user("a"), assistant("x"), user("b")) for n in range(5)]
    run(given, tiny_server, tmp_path / "1")
    first = {body["seed"] for body in tiny_server.asked}
    assert {(body["model"], body["temperature"], body["max_tokens"]) for body in tiny_server.asked} == {
        ("target", 0.5, 8)
    }
    assert len(first) == 10
    tiny_server.asked.clear()
    run(given[::-1], tiny_server, tmp_path / "2")
    assert {body["seed"] for body in tiny_server.asked} == first


def test_without_a_temperature_the_target_takes_its_own(tiny_server: TinyServer, tmp_path: Path) -> None:
    tiny_server.answer = echo
    run([conversation("c0")], tiny_server, tmp_path / "answers", Sampling(None, 8, 3))
    assert "temperature" not in tiny_server.asked[0]


def test_results_keep_the_input_order(tiny_server: TinyServer, tmp_path: Path) -> None:
    tiny_server.answer = echo
    made = run([conversation(f"c{n}") for n in range(40)], tiny_server, tmp_path / "answers")
    assert [c.id for c in made.conversations] == [f"c{n}" for n in range(40)]
    assert made.num_tokens == 80


def test_a_second_attempt_asks_only_for_what_is_missing(tiny_server: TinyServer, tmp_path: Path) -> None:
    tiny_server.answer = echo
    answers = tmp_path / "answers"
    given = [conversation(f"c{n}") for n in range(4)]
    whole = run(given, tiny_server, answers)
    lines = answers.read_bytes().splitlines(keepends=True)
    answers.write_bytes(b"".join(lines[:2]) + lines[2][:-9])  # killed while it wrote
    tiny_server.asked.clear()
    again = run(given, tiny_server, answers)
    assert len(tiny_server.asked) == again.num_reused == 2
    assert again.conversations == whole.conversations
    assert sorted(json.loads(line)["id"] for line in answers.read_text().splitlines()) == ["c0", "c1", "c2", "c3"]


def test_answers_to_another_prompt_or_sampling_are_not_reused(tiny_server: TinyServer, tmp_path: Path) -> None:
    tiny_server.answer = echo
    answers = tmp_path / "answers"
    run([conversation("c0")], tiny_server, answers)
    assert run([conversation("c0", user("other"))], tiny_server, answers).num_reused == 0
    assert run([conversation("c0")], tiny_server, answers, Sampling(0.6, 8, 3)).num_reused == 0
    assert run([conversation("c0")], tiny_server, answers).num_reused == 1


def test_what_is_refused_is_named_by_line_and_left_out_and_what_may_pass_is_tried_again(
    tiny_server: TinyServer, tmp_path: Path
) -> None:
    tries: dict[str, int] = {}

    def answer(path: str, body: dict[str, Any]) -> tuple[int, object]:
        text = body["messages"][0]["content"]
        tries[text] = tries.get(text, 0) + 1
        refusals = {"c0": (400, {"error": "too long"}), "c1": (500, {}), "c3": (200, {"choices": []})}
        if text == "c2" and tries[text] < 3:
            return 429, {}
        return refusals.get(text) or reply(text)

    tiny_server.answer = answer
    made = run([conversation(f"c{n}") for n in range(5)], tiny_server, tmp_path / "answers")
    assert [c.id for c in made.conversations] == ["c2", "c4"]
    assert sorted(map(str, made.failed)) == [
        'a.jsonl:1: the target did not answer (HTTP 400: {"error": "too long"}): it was left out',
        "a.jsonl:2: the target did not answer (HTTP 500: {}): it was left out",
        "a.jsonl:4: the target did not answer (unknown form of reply: {'choices': []}): it was left out",
    ]
    assert tries == {"c0": 1, "c1": 3, "c2": 3, "c3": 1, "c4": 1}


def test_empty_answers_are_dropped_and_cut_ones_are_counted(tiny_server: TinyServer, tmp_path: Path) -> None:
    texts: dict[str, tuple[int, object]] = {"c0": reply(" \n"), "c1": reply(None), "c2": reply("a b", "length")}
    tiny_server.answer = lambda path, body: texts[body["messages"][0]["content"]]
    made = run([conversation(f"c{n}") for n in range(3)], tiny_server, tmp_path / "answers")
    assert [c.id for c in made.conversations] == ["c2"]
    assert (made.num_empty, made.num_cut, made.failed) == (2, 1, [])


def test_results_of_tools_are_not_asked_for_again(tiny_server: TinyServer, tmp_path: Path) -> None:
    tiny_server.answer = echo
    made = run([conversation("c0", user("a"), Message("tool", "3"))], tiny_server, tmp_path / "answers")
    assert "it holds results of tools" in str(made.failed[0])
    assert tiny_server.asked == []


def test_a_server_that_is_gone_ends_it_and_keeps_what_was_written(tiny_server: TinyServer, tmp_path: Path) -> None:
    answers = tmp_path / "answers"
    num_answered = 5

    def answer(path: str, body: dict[str, Any]) -> tuple[int, object]:
        return echo(path, body) if int(body["messages"][0]["content"][1:]) < num_answered else (503, {})

    tiny_server.answer = answer
    with pytest.raises(RegenerationFailed, match=r"failed 32 conversations in a row, the last with: HTTP 503"):
        run([conversation(f"c{n}") for n in range(200)], tiny_server, answers)
    assert len(answers.read_text().splitlines()) == num_answered
    assert len(tiny_server.asked) < 3 * 50


def test_a_request_beyond_its_deadline_is_given_up(tmp_path: Path) -> None:
    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async def ask() -> Regenerated:
        server = await asyncio.start_server(hang, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server:
            where = Server(f"http://127.0.0.1:{port}", "target", 1, 0.05, 3)
            return await regenerate([conversation("c0")], where, SAMPLING, tmp_path / "answers")

    assert "no answer within 0.05 s" in str(asyncio.run(ask()).failed[0])
