"""Placeholders, and what is hidden before a plan is shown."""

from __future__ import annotations

import pytest

from dspark_train.plan.build import build_plan
from dspark_train.plan.redact import is_secret, redacted
from dspark_train.plan.spec import Plan, Unbound, bind

from .conftest import Resolve

WHERE = {"hosts": {"set0-shared-0": "10.0.0.7"}, "ports": {"master.rpc": 21000}, "run": "a1", "log": "logs/x.log"}


@pytest.mark.parametrize(
    ("text", "bound"),
    [
        ("{host:set0-shared-0}:{port:master.rpc}", "10.0.0.7:21000"),
        ("{run} to {log}", "a1 to logs/x.log"),
        ('{"host":"{host:set0-shared-0}","run":{}}', '{"host":"10.0.0.7","run":{}}'),
        ("{other}", "{other}"),
        ("", ""),
    ],
)
def test_placeholders_are_filled_and_json_is_left_alone(text: str, bound: str) -> None:
    assert bind(text, **WHERE) == bound  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["{host:set0-shared-1}", "{port:engine-1.0.http}", "{interface}"])
def test_a_placeholder_without_a_value_is_named(text: str) -> None:
    with pytest.raises(Unbound, match=text.strip("{}")):
        bind(text, **WHERE)  # type: ignore[arg-type]


def test_a_plan_comes_back_whole_from_json(shipped: Resolve) -> None:
    plan = build_plan(shipped("gb300-12node"))
    assert Plan.model_validate_json(plan.model_dump_json()) == plan


@pytest.mark.parametrize("name", ["HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "WANDB_API_KEY", "DB_PASSWORD", "--hf-token"])
def test_secrets_are_known_by_their_names(name: str) -> None:
    assert is_secret(name)


@pytest.mark.parametrize(
    "name", ["--max-num-batched-tokens", "TOKENIZERS_PARALLELISM", "OMP_NUM_THREADS", "--tokenizer"]
)
def test_other_names_are_not_taken_for_secrets(name: str) -> None:
    assert not is_secret(name)


def test_secrets_are_hidden_in_a_plan_that_is_shown(shipped: Resolve) -> None:
    overrides = [
        "engines.env={HF_TOKEN: hf_abc, A: b}",
        "engines.vllm={hf_token: hf_abc, max_num_batched_tokens: 4096}",
    ]
    plan = redacted(build_plan(shipped("quickstart", *overrides)))
    assert "hf_abc" not in plan.model_dump_json()
    engine = plan.process("engine-1.0")
    assert (engine.env["HF_TOKEN"], engine.env["A"]) == ("***", "b")
    assert engine.argv[engine.argv.index("--max-num-batched-tokens") + 1] == "4096"
