"""The whole command, as a user calls it: with a tiny server for vLLM, and (marker engine) with vLLM itself."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dspark_train.cli.app import run
from dspark_train.data.dataset import Dataset
from tests.data.tiny_chat import render
from tests.data.tiny_server import TinyServer

TOPOLOGIES = Path(__file__).parents[2] / "topologies"
TOPOLOGY = """
name: tiny
target: {{model: {model}, layers: [1], shape: {{num_layers: 4, hidden_size: 8}}}}
data: {{path: {out}, seq_len: 64, step_packs: 1}}
nodes: {{shared: {{count: 1, gpus: 0}}}}
engines: {{count: {{start: 1, max: 1}}}}
trainers: {{ranks: {{start: 1, max: 1}}}}
store: {{segment_gib: 0.25}}
run: {{max_steps: 1}}
"""

Prepare = Callable[..., tuple[int, str, str]]


@pytest.fixture
def prepare(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Prepare:
    """Calls `prepare` with a tiny topology in an empty directory. Returns (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))

    def call(*args: str, model: str | Path = "org/model") -> tuple[int, str, str]:
        Path("topology.yaml").write_text(TOPOLOGY.format(model=model, out="out"))
        code = run(["prepare", "--topology", "topology.yaml", *args])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def write_conversations(num: int = 3) -> None:
    lines = [json.dumps({"prompt": f"q{number}", "response": "a" * (number + 1)}) for number in range(num)]
    Path("c.jsonl").write_text("\n".join(lines))


def serve(path: str, body: dict[str, Any]) -> tuple[int, object]:
    """All that `prepare` asks of vLLM; the target answers "yes" and the number of turns."""
    if path == "/v1/models":
        return 200, {"data": [{"id": "served"}]}
    if path.endswith("/render"):
        return render(path, body)
    message = {"content": f"yes {len(body['messages'])}"}
    return 200, {"choices": [{"message": message, "finish_reason": "stop"}], "usage": {"completion_tokens": 3}}


def test_everything_is_refused_before_anything_starts(prepare: Prepare, tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    assert prepare(model=model)[::2] == (
        2,
        "error: no conversations to read: give --data FILE, or set data.source in topology.yaml\n",
    )
    assert prepare("--data", "none.jsonl", model=model)[::2] == (
        2,
        "error: none.jsonl: does not exist: check the path\n",
    )
    write_conversations()
    assert prepare("--data", "c.jsonl")[::2] == (
        2,
        "error: the target org/model is neither a model directory nor in the Hugging Face cache: correct target.model, "
        "download it, or give --unpack-target for the quickstart's\n",
    )
    assert prepare("--data", "c.jsonl", "--unpack-target", model=tmp_path)[::2] == (
        2,
        f"error: {tmp_path} is there, but is not the unpacked quickstart target: remove it, and try again\n",
    )
    assert prepare("--data", "c.jsonl", "--regenerate", "--max-tokens", "64", model=model)[::2] == (
        2,
        "error: --max-tokens 64 leaves no room for a prompt within data.seq_len 64: lower it\n",
    )
    code, _, err = prepare("--data", "c.jsonl", "--endpoint", "http://127.0.0.1:1", model=model)
    assert code == 2
    assert err.startswith("error: --endpoint http://127.0.0.1:1 names no vLLM server (ConnectError")
    Path("out").mkdir()
    Path("out/notes.txt").touch()
    assert prepare("--data", "c.jsonl", model=model)[::2] == (
        2,
        "error: out holds something else than a data set: name another directory in data.path or --out\n",
    )
    assert sorted(path.name for path in tmp_path.iterdir() if not path.name.startswith(".")) == [
        "c.jsonl",
        "model",
        "out",
        "topology.yaml",
    ]


@pytest.mark.torch
def test_the_answers_of_the_files_are_prepared_once(
    prepare: Prepare, tiny_server: TinyServer, tokenizer_directory: Path
) -> None:
    tiny_server.answer = serve
    write_conversations()
    args = ("--data", "c.jsonl", "--endpoint", tiny_server.url)
    code, out, err = prepare(*args, "--json", model=tokenizer_directory)
    assert code == 0, err
    made = json.loads(out)
    dataset = Dataset.open("out")
    assert (made["made"], made["num_samples"], made["num_trained_tokens"]) == (True, 3, 2 + 3 + 4)
    assert made["fingerprint"] == dataset.fingerprint
    asked = len(tiny_server.asked)

    code, out, _ = prepare(*args, model=tokenizer_directory)
    assert (code, len(tiny_server.asked)) == (0, asked)
    assert out.startswith("the data set out was made from the same inputs already (3 samples, ")

    code, _, err = prepare(*args, "--set", "data.seq_len=32", model=tokenizer_directory)
    assert (code, err) == (
        2,
        "error: the data set out was made from other inputs (seq_len 32 (was 64)): --overwrite replaces it\n",
    )
    code, out, err = prepare(*args, "--set", "data.seq_len=32", "--overwrite", model=tokenizer_directory)
    assert code == 0, err
    assert Dataset.open("out").info.seq_len == 32
    assert "+ t" in out  # the trained part of a sample, as its tokenizer spells it


@pytest.mark.torch
def test_the_target_writes_the_answers_and_what_it_wrote_is_kept(
    prepare: Prepare, tiny_server: TinyServer, tokenizer_directory: Path
) -> None:
    tiny_server.answer = serve
    write_conversations(4)
    args = ("--data", "c.jsonl", "--endpoint", tiny_server.url, "--regenerate", "--max-tokens", "16", "--json")
    code, out, err = prepare(*args, model=tokenizer_directory)
    assert code == 0, err
    assert json.loads(out)["num_trained_tokens"] == 4 * len("yes 1.")
    written = [json.loads(line) for line in Path("out/conversations.jsonl").read_text().splitlines()]
    assert [[turn["content"] for turn in line["conversations"]] for line in written] == [
        [f"q{number}", "yes 1"] for number in range(4)
    ]
    code, out, _ = prepare(*args, "--overwrite", "--set", "data.seq_len=48", model=tokenizer_directory)
    assert (code, json.loads(out)["num_reused_answers"]) == (0, 4)


@pytest.mark.torch
def test_broken_records_are_shown_and_too_many_unanswered_ones_refused(
    prepare: Prepare, tiny_server: TinyServer, tokenizer_directory: Path
) -> None:
    write_conversations(40)
    with Path("c.jsonl").open("a") as handle:
        handle.write("\n{}")
    tiny_server.answer = lambda path, body: (400, {}) if path.endswith("completions") else serve(path, body)
    args = ("--data", "c.jsonl", "--endpoint", tiny_server.url, "--regenerate")
    code, _, err = prepare(*args, model=tokenizer_directory)
    assert code == 1
    assert "broken records, skipped: 1\n  c.jsonl:41: has no known shape" in err
    assert "failed 32 conversations in a row" in err

    def answer_some(path: str, body: dict[str, Any]) -> tuple[int, object]:
        refused = path.endswith("completions") and body["messages"][0]["content"] in ("q1", "q2", "q3")
        return (400, {}) if refused else serve(path, body)

    tiny_server.answer = answer_some
    code, _, err = prepare(*args, model=tokenizer_directory)
    assert code == 2
    assert "error: c.jsonl: 3 of 40 records failed, more than --max-bad-frac 0.05 allows" in err
    assert "error: c.jsonl:2: the target did not answer (HTTP 400: {}): it was left out" in err
    assert not Path("out").exists()


@pytest.mark.engine
@pytest.mark.timeout(600)
def test_vllm_writes_and_renders_a_handful_of_prompts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    examples = Path(__file__).parents[2] / "examples"
    monkeypatch.chdir(tmp_path)
    Path("c.jsonl").write_text("".join((examples / "prompts.jsonl").read_text().splitlines(keepends=True)[:4]))
    args = ["prepare", "--topology", str(TOPOLOGIES / "quickstart.yaml"), "--data", "c.jsonl", "--json"]
    assert run([*args, "--unpack-target", "--regenerate", "--max-tokens", "16", "--temperature", "0"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert (made["num_samples"], made["num_unanswered"], made["dropped"]) == (4, 0, {})
    dataset = Dataset.open("quickstart/data")
    assert all(0 < dataset.loss_mask(index).sum() <= 18 for index in range(4))  # 16, an end of turn and a line end

    assert run([*args, "--out", "rendered"]) == 0  # vLLM's rendering server, without weights
    assert json.loads(capsys.readouterr().out)["num_samples"] == 4
    assert not [path for path in tmp_path.rglob("*") if path.name.endswith(".partial")]
