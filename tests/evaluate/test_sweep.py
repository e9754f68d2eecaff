"""The serving sweep: what is taken from `bench serve`, what is made of it, and how it is shown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dspark_train.cli.app import run
from dspark_train.cli.bench_serving import users_of, write
from dspark_train.errors import UsageError
from dspark_train.evaluate.sweep import Level, Sweep, bench_argv, level_of, problems, table

RESULT: dict[str, Any] = {
    "completed": 8,
    "failed": 0,
    "duration": 4.0,
    "total_output_tokens": 400,
    "output_throughput": 100.0,
    "median_tpot_ms": 20.0,
    "median_ttft_ms": 150.0,
    "p95_ttft_ms": 400.0,
}


def level(users: int, tokens_per_s: float, **more: Any) -> Level:
    return level_of(RESULT | {"output_throughput": tokens_per_s} | more, users)


def sweep(with_draft: tuple[Level, ...], without_draft: tuple[Level, ...]) -> Sweep:
    return Sweep(
        target="t",
        draft="/drafts/a1",
        algorithm="dflash",
        device="cpu",
        machine="2 CPUs",
        num_speculative_tokens=7,
        max_output_tokens=32,
        prompts="conversations.jsonl",
        with_draft=with_draft,
        without_draft=without_draft,
    )


def test_a_level_is_in_seconds_and_tokens_a_second() -> None:
    found = level_of(RESULT | {"spec_decode_acceptance_length": 2.5}, 4)
    assert (found.concurrency, found.output_tokens_per_s, found.accept_len) == (4, 100.0, 2.5)
    assert found.user_tokens_per_s == 50.0  # a token every 20 ms
    assert (found.ttft_median_s, found.ttft_p95_s) == (0.15, 0.4)


def test_answers_of_one_token_have_no_time_between_tokens() -> None:
    assert level_of(RESULT | {"median_tpot_ms": 0.0}, 1).user_tokens_per_s is None


def test_speed_up_is_the_ratio_of_throughputs_where_both_were_measured() -> None:
    found = sweep((level(1, 150.0), level(2, 90.0), level(4, 90.0)), (level(1, 100.0), level(2, 180.0)))
    assert found.speedups() == {1: 1.5, 2: 0.5}


def test_the_table_has_both_sides_of_every_level_in_80_columns() -> None:
    found = sweep((level(1, 150.0, spec_decode_acceptance_length=2.5), level(16, 12345.6)), (level(1, 100.0),))
    lines = table(found)
    assert len(lines) == 4
    assert max(map(len, lines)) <= 80
    assert lines[1].split()[-2:] == ["2.50", "1.50x"]
    assert "without" in lines[2]


def test_requests_that_failed_are_told() -> None:
    assert problems([level(1, 1.0), level(2, 1.0, failed=3)]) == ["with 2 users 3 of 11 requests failed"]


def test_both_sides_are_asked_the_same_greedily() -> None:
    asked = {"base_url": "http://h", "model": "m", "tokenizer": "t", "prompts": "p.jsonl"}
    argv = bench_argv(**asked, concurrency=4, num_prompts=16, max_tokens=32)
    assert argv[argv.index("--max-concurrency") + 1] == "4"
    assert argv[argv.index("--num-prompts") + 1] == "16"
    assert argv[argv.index("--temperature") + 1] == "0"


@pytest.mark.parametrize("text", ["", "a", "1,,2", "0", "-1,2"])
def test_users_that_are_no_numbers_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="give numbers of users"):
        users_of(text)


def test_figures_and_plots_are_written_and_read_again(tmp_path: Path) -> None:
    found = sweep((level(1, 150.0), level(2, 190.0)), (level(1, 100.0), level(2, 180.0)))
    paths = write(found, tmp_path)
    assert Sweep.model_validate_json(paths[0].read_text()) == found
    assert paths[1].read_bytes().startswith(b"\x89PNG")


def test_serving_a_run_that_does_not_exist_is_a_usage_error(tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("DSPARK_RUNS", str(tmp_path))
    assert run(["bench", "serving", "nothing", "--json"]) == 2
    assert "nothing" in json.dumps(capsys.readouterr().err)
