"""What is read: every shape into the same normal form."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dspark_train.data.conversation import Message
from dspark_train.data.conversations import read_conversations

EXAMPLES = Path(__file__).parents[2] / "examples"
DOMAINS = {
    "math",
    "code",
    "translation",
    "question_answering",
    "summarising",
    "writing",
    "reasoning",
    "extraction",
    "chat",
}
QUESTION, ANSWER = Message("user", "What is 2 + 2?"), Message("assistant", "4")
SAME_CONVERSATION: dict[str, dict[str, Any]] = {
    "messages": {"messages": [QUESTION.as_json(), ANSWER.as_json()]},
    "from and value": {
        "conversations": [{"from": "human", "value": QUESTION.content}, {"from": "gpt", "value": ANSWER.content}]
    },
    "conversations with role and content": {"conversations": [QUESTION.as_json(), ANSWER.as_json()]},
    "prompt and response": {"prompt": QUESTION.content, "response": ANSWER.content},
    "instruction and output": {"instruction": QUESTION.content, "input": "", "output": ANSWER.content},
    "question and answer": {"question": QUESTION.content, "answer": ANSWER.content},
    "text parts": {
        "messages": [{"role": "user", "content": [{"type": "text", "text": QUESTION.content}]}, ANSWER.as_json()]
    },
    "a table's struct of lists": {
        "messages": {"role": ["user", "assistant"], "content": [QUESTION.content, ANSWER.content]}
    },
    "keys that are null": {"messages": None, "prompt": QUESTION.content, "response": ANSWER.content},
}


def write(path: Path, *records: object) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


@pytest.mark.parametrize("shape", SAME_CONVERSATION)
def test_every_shape_becomes_the_same_turns(shape: str, tmp_path: Path) -> None:
    file = write(tmp_path / "a.jsonl", SAME_CONVERSATION[shape])
    (conversation,) = read_conversations([file]).conversations
    assert conversation.messages == (QUESTION, ANSWER)
    assert (conversation.id, conversation.file, conversation.line) == (f"{file}:1", str(file), 1)


def test_the_input_of_an_instruction_and_a_system_text_are_kept(tmp_path: Path) -> None:
    file = write(tmp_path / "a.jsonl", {"system": "Be brief.", "instruction": "Add", "input": "2 and 2", "output": "4"})
    (conversation,) = read_conversations([file]).conversations
    assert conversation.messages == (Message("system", "Be brief."), Message("user", "Add\n\n2 and 2"), ANSWER)


def test_reasoning_is_kept(tmp_path: Path) -> None:
    turns = [QUESTION.as_json(), ANSWER.as_json() | {"reasoning_content": "Two twos."}]
    (conversation,) = read_conversations([write(tmp_path / "a.jsonl", {"messages": turns})]).conversations
    assert conversation.messages[1] == Message("assistant", "4", "Two twos.")
    assert conversation.messages[1].as_json() == turns[1]


def test_answers_may_be_missing_or_empty_where_the_target_writes_them(tmp_path: Path) -> None:
    turns = [QUESTION.as_json(), {"role": "assistant", "content": ""}]
    file = write(
        tmp_path / "a.jsonl", {"prompt": QUESTION.content}, {"messages": turns}, {"prompt": "Hi", "response": ""}
    )
    reading = read_conversations([file], regenerate=True)
    assert [conversation.messages[-1].role for conversation in reading.conversations] == ["user"] * 3


@pytest.mark.parametrize("name", ["a.json", "a.jsonl"])
@pytest.mark.parametrize("bom", [b"", b"\xef\xbb\xbf"])
def test_an_array_is_read_whatever_its_name_and_byte_order_mark(name: str, bom: bytes, tmp_path: Path) -> None:
    file = tmp_path / name
    record = json.dumps(SAME_CONVERSATION["messages"])
    file.write_bytes(bom + f"[\n{record},\n\n{record}\n]\n".encode())
    assert [conversation.line for conversation in read_conversations([file]).conversations] == [2, 4]


@pytest.mark.parametrize("bom", [b"", b"\xef\xbb\xbf"])
def test_json_lines_are_read_with_empty_lines_carriage_returns_and_a_byte_order_mark(
    bom: bytes, tmp_path: Path
) -> None:
    record = json.dumps(SAME_CONVERSATION["messages"]).encode()
    file = tmp_path / "a.json"
    file.write_bytes(bom + record + b"\r\n\r\n" + record)
    assert [conversation.line for conversation in read_conversations([file]).conversations] == [1, 3]


def test_one_object_over_several_lines_is_one_record(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    file.write_text(json.dumps(SAME_CONVERSATION["messages"], indent=2))
    assert len(read_conversations([file]).conversations) == 1


def test_parquet_and_arrow_rows_are_read_with_their_row_numbers(tmp_path: Path) -> None:
    table = pa.Table.from_pylist([SAME_CONVERSATION["messages"] | {"domain": "math"}] * 3)
    pq.write_table(table, tmp_path / "a.parquet")
    with pa.OSFile(str(tmp_path / "a.arrow"), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    with pa.OSFile(str(tmp_path / "b.arrow"), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    for name in ("a.parquet", "a.arrow", "b.arrow"):
        conversations = read_conversations([tmp_path / name]).conversations
        assert [(c.messages, c.domain, c.line) for c in conversations] == [
            ((QUESTION, ANSWER), "math", n) for n in (1, 2, 3)
        ]


def test_a_saved_data_set_is_read_in_the_order_of_its_shards_and_by_its_train_split(tmp_path: Path) -> None:
    train = tmp_path / "train"
    train.mkdir()
    shards = ["data-00001-of-00002.arrow", "data-00000-of-00002.arrow"]
    for number, shard in enumerate(shards):
        table = pa.Table.from_pylist([{"id": str(number), **SAME_CONVERSATION["messages"]}])
        with pa.OSFile(str(train / shard), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
    (train / "state.json").write_text(json.dumps({"_data_files": [{"filename": shard} for shard in shards]}))
    (tmp_path / "dataset_dict.json").write_text(json.dumps({"splits": ["test", "train"]}))
    assert [conversation.id for conversation in read_conversations([tmp_path]).conversations] == ["0", "1"]


def test_the_shipped_prompts_cover_nine_domains_and_every_example_reads_without_a_fault() -> None:
    reading = read_conversations(sorted(EXAMPLES.glob("*.jsonl")), max_bad_frac=0)
    prompts = [c for c in reading.conversations if c.file.endswith("prompts.jsonl")]
    assert len(prompts) >= 200
    assert {c.domain for c in prompts} == DOMAINS
    assert len({c.messages[0].content for c in prompts}) == len(prompts)
    assert all(8 <= len(c.messages[0].content.split()) <= 60 for c in prompts)
