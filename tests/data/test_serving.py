from pathlib import Path

import pytest

from dspark_train.data.serving import server_command
from dspark_train.errors import UsageError
from dspark_train.topology.facts import TargetFacts
from dspark_train.topology.load import load
from dspark_train.topology.resolve import Resolved, resolve

TOPOLOGIES = Path(__file__).parents[2] / "topologies"


def resolved(name: str, facts: TargetFacts | None = None) -> Resolved:
    return resolve(load(TOPOLOGIES / f"{name}.yaml"), facts or TargetFacts())


def test_on_cpu_it_writes_in_bfloat16_where_the_hardware_does_and_uses_the_threads_it_is_given() -> None:
    facts = TargetFacts(is_local=True, path="/models/smol")
    command = server_command(
        resolved("quickstart", facts), port=20001, writes=True, threads=2, cpu_flags="fpu amx_bf16"
    )
    assert command.argv == (
        "python",
        "-m",
        "dspark_train.engine.vllm_entry",
        "serve",
        "/models/smol",
        "--host",
        "127.0.0.1",
        "--port",
        "20001",
        "--served-model-name",
        "quickstart/target",
        "--enable-scale-out",
        "--dtype",
        "bfloat16",
        "--tensor-parallel-size",
        "1",
        "--enforce-eager",
        "--max-model-len",
        "513",
        "--block-size",
        "32",
        "--no-enable-chunked-prefill",
        "--max-num-batched-tokens",
        "2048",
    )
    assert command.env["OMP_NUM_THREADS"] == "2"
    assert command.env["HF_HUB_OFFLINE"] == "1"
    plain = server_command(resolved("quickstart", facts), port=20001, writes=True, threads=2, cpu_flags="fpu avx2")
    assert plain.argv[plain.argv.index("--dtype") + 1] == "float32"


def test_on_cpu_no_prompt_is_read_in_pieces_whatever_the_engines_do() -> None:
    topology = load(
        TOPOLOGIES / "quickstart.yaml",
        ["engines.vllm.max_model_len=4000", "engines.vllm.enable_chunked_prefill=true"],
    )
    argv = server_command(resolve(topology, TargetFacts()), port=20001, writes=True, threads=1).argv
    assert "--enable-chunked-prefill" not in argv
    assert argv[argv.index("--max-num-batched-tokens") + 1] == "4000"


def test_without_answers_to_write_it_only_renders_and_needs_neither_weights_nor_other_nodes() -> None:
    command = server_command(resolved("gb300-3node"), port=20001, writes=False, threads=2)
    assert command.argv[3:6] == ("launch", "render", "moonshotai/Kimi-K3")
    assert "--trust-remote-code" in command.argv
    assert command.argv[-2:] == ("--max-model-len", "8193")
    assert "HF_HUB_OFFLINE" not in command.env


def test_on_gpus_it_writes_as_the_engines_run() -> None:
    command = server_command(resolved("qwen3-8b"), port=20001, writes=True, threads=2, cpu_flags="amx_bf16")
    assert command.argv[command.argv.index("--dtype") + 1] == "bfloat16"
    assert "--enforce-eager" not in command.argv
    assert "OMP_NUM_THREADS" not in command.env


def test_a_target_over_several_nodes_is_left_to_the_user() -> None:
    with pytest.raises(UsageError) as caught:
        server_command(resolved("gb300-3node"), port=20001, writes=True, threads=2)
    assert str(caught.value) == (
        "the target takes 2 nodes, and prepare starts servers on this one only: start vLLM over them with "
        "--enable-scale-out, and name it with --endpoint http://HOST:PORT"
    )
