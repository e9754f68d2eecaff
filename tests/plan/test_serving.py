"""The command that serves a target with its draft: what it takes from the topology, and in which forms it comes."""

from __future__ import annotations

import json
import shlex
import subprocess
from itertools import pairwise
from typing import Any

import pytest
import yaml

from dspark_train.errors import UsageError
from dspark_train.plan import serving_text
from dspark_train.plan.serving import (
    ServingCommand,
    ServingOptions,
    counting_command,
    serving_command,
    speculative_config,
)
from dspark_train.topology.pairing import DraftFacts

from .conftest import Resolve

DFLASH = DraftFacts(where="/drafts/a b", algorithm="dflash", num_speculative_tokens=7)


def made(options: ServingOptions, draft: DraftFacts | None = DFLASH, **kwargs: Any) -> ServingCommand:
    return serving_command(options, draft, host="127.0.0.1", port=8000, **kwargs)


def flags(argv: tuple[str, ...]) -> dict[str, str]:
    return {flag: value for flag, value in pairwise(argv) if flag.startswith("--")}


def test_the_quickstarts_target_is_served_with_its_draft_as_on_cpu(shipped: Resolve) -> None:
    argv = made(ServingOptions.of(shipped("quickstart"))).argv()
    assert argv[:5] == ("python", "-m", "dspark_train.engine.vllm_entry", "serve", "/models/target")
    assert "--enforce-eager" in argv
    found = flags(argv)
    assert (found["--dtype"], found["--tensor-parallel-size"], found["--served-model-name"]) == (
        "float32",
        "1",
        "target",
    )
    assert json.loads(found["--speculative-config"]) == {
        "method": "dflash",
        "model": "/drafts/a b",
        "num_speculative_tokens": 7,
    }


def test_what_only_extraction_needs_is_left_out_and_the_rest_of_the_topologys_options_kept(shipped: Resolve) -> None:
    argv = made(ServingOptions.of(shipped("gb300-3node"))).argv(0)
    assert argv[:3] == ("vllm", "serve", "moonshotai/Kimi-K3")
    assert {"--enable-expert-parallel", "--trust-remote-code"} <= set(argv)
    assert not {"--max-model-len", "--kv-transfer-config"} & set(argv)
    assert flags(argv)["--max-num-seqs"] == "64"
    assert flags(argv)["--served-model-name"] == "moonshotai/Kimi-K3"


def test_a_target_over_two_nodes_is_one_command_a_node(shipped: Resolve) -> None:
    command = made(ServingOptions.of(shipped("gb300-3node")))
    first, second = (flags(command.argv(node)) for node in (0, 1))
    assert (first["--nnodes"], first["--node-rank"], second["--node-rank"]) == ("2", "0", "1")
    assert "--headless" in command.argv(1)
    assert "--headless" not in command.argv(0)
    lines = serving_text.shell(command).splitlines()
    assert [line for line in lines if line.startswith("#")] == ["# node 0, whose address is $HEAD_ADDRESS", "# node 1"]
    assert all('--master-addr "$HEAD_ADDRESS"' in line for line in lines if not line.startswith("#"))


def test_the_target_alone_has_the_same_options_without_the_draft(shipped: Resolve) -> None:
    options = ServingOptions.of(shipped("quickstart"))
    without, with_it = made(options, None).options, made(options).options
    assert with_it == without | {"speculative_config": with_it["speculative_config"]}


def test_a_server_that_counts_verifies_every_token_and_on_cpu_in_float32(shipped: Resolve) -> None:
    options = ServingOptions.of(shipped("quickstart")).model_copy(update={"dtype": "bfloat16"})
    asked: dict[str, Any] = {"host": "127.0.0.1", "port": 8000, "num_tokens": 5, "max_model_len": 300}
    argv = counting_command(options, DFLASH, **asked).argv()
    found = flags(argv)
    assert (found["--dtype"], found["--max-model-len"], found["--max-num-batched-tokens"]) == ("float32", "300", "2048")
    assert {"--no-enable-prefix-caching", "--no-enable-chunked-prefill"} <= set(argv)
    assert json.loads(found["--speculative-config"])["num_speculative_tokens"] == 5
    on_gpu = ServingOptions.of(shipped("qwen3-8b"))
    argv = counting_command(on_gpu, DFLASH, **asked, draft_samples=True).argv()
    assert flags(argv)["--dtype"] == "bfloat16"
    assert json.loads(flags(argv)["--speculative-config"])["draft_sample_method"] == "probabilistic"
    assert "--no-enable-chunked-prefill" not in argv


def test_further_options_win(shipped: Resolve) -> None:
    options = ServingOptions.of(shipped("gb300-3node"))
    assert made(options, extra={"max_num_seqs": 8}).options["max_num_seqs"] == 8


def test_secrets_are_named_and_never_carried(shipped: Resolve) -> None:
    env = {"HF_TOKEN": "hf_very", "NCCL_DEBUG": "WARN"}
    topology = shipped("gb300-3node").topology
    engines = topology.engines.model_copy(update={"env": env, "vllm": {"api_key": "sk-very"}})
    resolved = shipped("gb300-3node").model_copy(update={"topology": topology.model_copy(update={"engines": engines})})
    options = ServingOptions.of(resolved)
    command = made(options)
    shown = (serving_text.shell(command), serving_text.docker(command), serving_text.as_yaml(command))
    assert not [text for text in (*shown, options.model_dump_json()) if "very" in text]
    assert 'HF_TOKEN="$HF_TOKEN"' in shown[0]
    assert "-e HF_TOKEN " in shown[1]
    assert "NCCL_DEBUG=WARN" in shown[0]


def test_the_shell_line_is_read_by_a_shell_as_it_was_meant(shipped: Resolve) -> None:
    command = made(ServingOptions.of(shipped("quickstart")))
    line = serving_text.shell(command)
    words = shlex.split(line)
    assert tuple(words[len(command.env) :]) == command.argv()
    done = subprocess.run(["sh", "-nc", line], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr


def test_docker_sees_the_models_where_they_are_mounted_and_listens_for_the_host(shipped: Resolve) -> None:
    words = shlex.split(serving_text.docker(made(ServingOptions.of(shipped("quickstart"))), image="mine:1"))
    after = words[words.index("mine:1") + 1 :]
    assert after[:2] == ["--model", "/models/target"]
    assert "/models/target:/models/target:ro" in words
    assert "/drafts/a b:/models/draft:ro" in words
    assert json.loads(flags(tuple(after))["--speculative-config"])["model"] == "/models/draft"
    assert flags(tuple(after))["--host"] == "0.0.0.0"
    assert "127.0.0.1:8000:8000" in words


def test_the_yaml_is_vllms_own_file(shipped: Resolve) -> None:
    text = serving_text.as_yaml(made(ServingOptions.of(shipped("quickstart"))))
    found = yaml.safe_load(text)
    assert found["model"] == "/models/target"
    assert found["tensor-parallel-size"] == 1
    assert found["speculative-config"]["num_speculative_tokens"] == 7
    assert "# environment: VLLM_CPU_KVCACHE_SPACE=2" in text


@pytest.mark.parametrize(
    ("algorithm", "config"),
    [
        ("dspark", {"method": "dspark"}),
        ("dflash2", {"method": "dflash"}),
        ("eagle3", {"method": "eagle3"}),
        ("peagle", {"method": "eagle3", "parallel_drafting": True}),
    ],
)
def test_a_draft_is_named_as_vllm_names_it(algorithm: str, config: dict[str, Any]) -> None:
    draft = DraftFacts(where="d", algorithm=algorithm, num_speculative_tokens=4)
    assert speculative_config(draft) == {**config, "model": "d", "num_speculative_tokens": 4}


def test_a_draft_that_vllm_does_not_serve_beside_its_target_is_refused() -> None:
    with pytest.raises(UsageError, match="`speculators stitch`"):
        speculative_config(DraftFacts(where="d", algorithm="mtp", num_speculative_tokens=1))


def test_a_block_cannot_be_drafted_beyond_its_end_and_eagle_can_go_on() -> None:
    assert speculative_config(DFLASH, 3)["num_speculative_tokens"] == 3
    with pytest.raises(UsageError, match="drafts 7 tokens at a time"):
        speculative_config(DFLASH, 8)
    eagle = DraftFacts(where="d", algorithm="eagle3", num_speculative_tokens=3)
    assert speculative_config(eagle, 5)["num_speculative_tokens"] == 5


def test_a_dspark_draft_on_cpu_is_told_and_not_on_gpus(shipped: Resolve) -> None:
    draft = DFLASH.model_copy(update={"algorithm": "dspark"})
    assert "Triton" in made(ServingOptions.of(shipped("quickstart")), draft).caution
    assert made(ServingOptions.of(shipped("gb300-3node")), draft).caution == ""
