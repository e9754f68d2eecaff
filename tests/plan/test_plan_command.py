"""`dspark-train plan`, as a user and as a program see it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dspark_train.cli.plan_text import human, shell_lines
from dspark_train.plan.build import build_plan

from .conftest import TOPOLOGIES, Resolve
from .measured import profile

ROOT = TOPOLOGIES.parent
HELD = ("torch", "ray", "vllm", "transformers", "mooncake", "speculators", "numpy", "datasets")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "dspark_train.cli.app", "plan", *arguments]
    env = {**os.environ, "COLUMNS": "80", "NO_COLOR": "1"}
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=30, env=env, check=False)


def test_json_has_the_documented_keys_and_nothing_is_guessed() -> None:
    result = run("--topology", "topologies/gb300-3node.yaml", "--json")
    plan: dict[str, Any] = json.loads(result.stdout)
    assert (result.returncode, result.stderr) == (0, "")
    assert set(plan) >= {"topology", "nodes", "processes", "capacity", "predicted", "warnings"}
    assert len(plan["nodes"]) == 3
    assert all(set(p) >= {"name", "node", "argv", "env", "ports", "gpus"} for p in plan["processes"])
    assert sum(process["gpus"] for process in plan["processes"]) == 12
    assert plan["capacity"]["bytes_per_token"] == 86016
    assert plan["capacity"]["step_bytes"] == 22548578304
    assert plan["capacity"]["store_bytes"] == 4 * 64 * 2**30
    for unknown in ("link_bytes_per_s_needed", "target_weight_bytes", "draft_state_bytes"):
        assert plan["capacity"][unknown] is None
    assert plan["predicted"] == {"tokens_per_s": None, "bottleneck": None}
    assert plan["warnings"]


def test_the_page_fits_80_columns_and_shows_every_process() -> None:
    result = run("--topology", "topologies/gb300-12node.yaml")
    assert result.returncode == 0
    assert max(len(line) for line in result.stdout.split("\n")) <= 80
    plan = json.loads(run("--topology", "topologies/gb300-12node.yaml", "--json").stdout)
    for process in plan["processes"]:
        assert process["name"] in result.stdout
    assert "launch refuses this until it is known" in result.stdout


def test_a_broken_topology_ends_with_2_and_a_line() -> None:
    result = run("--topology", "topologies/quickstart.yaml", "--set", "store.segmet_gib=1", "--json")
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == (
        "error: --set store.segmet_gib=1: store.segmet_gib is not a known key: did you mean segment_gib?\n"
    )


def test_more_nodes_than_there_are_ends_with_2() -> None:
    result = run("--topology", "topologies/gb300-12node.yaml", "--nodes", "3")
    assert result.returncode == 2
    assert "sets (4) makes 12 nodes of which there are 3" in result.stderr


def measured(at: Path, shipped: Resolve, *, seq_len: int = 8192) -> Path:
    """A copy of a topology with rates beside it, measured with this length of a pack."""
    path = at / "three.yaml"
    path.write_text((TOPOLOGIES / "gb300-3node.yaml").read_text(encoding="utf-8"), encoding="utf-8")
    made = profile(shipped("gb300-3node", f"data.seq_len={seq_len}"), engine_tokens_per_s=9000.0)
    path.with_suffix(".profile.json").write_text(made.model_dump_json(), encoding="utf-8")
    return path


def test_rates_beside_the_topology_are_what_it_predicts_from(tmp_path: Path, shipped: Resolve) -> None:
    path = measured(tmp_path, shipped)
    plan = json.loads(run("--topology", str(path), "--json").stdout)
    assert plan["predicted"] == {"tokens_per_s": 4000.0, "bottleneck": "trainers"}
    assert plan["capacity"]["link_bytes_per_s_needed"] == 4000.0 * 86016
    assert plan["best"]["first"] == {"inference": 1, "trainers": 4, "tokens_per_s": 4000.0, "bottleneck": "trainers"}
    assert plan["measured"]["file"] == str(path.with_suffix(".profile.json"))
    assert plan["measured"]["engine_tokens_per_s"] == 9000.0
    assert not any("measured" in text for text in plan["warnings"])
    page = run("--topology", str(path)).stdout
    assert "predicted: 4,000 tokens/s, ranks hold it up\n" in page
    assert max(len(line) for line in page.split("\n") if not line.startswith("from /")) <= 80
    changed = json.loads(run("--topology", str(path), "--set", "engines.max_in_flight=3", "--json").stdout)
    assert changed["predicted"] == {"tokens_per_s": None, "bottleneck": None}
    assert "engines.max_in_flight" in changed["warnings"][-1]


def test_rates_of_another_topology_end_in_one_caution(tmp_path: Path, shipped: Resolve) -> None:
    path = measured(tmp_path, shipped, seq_len=4096)
    plan = json.loads(run("--topology", str(path), "--json").stdout)
    assert plan["predicted"] == {"tokens_per_s": None, "bottleneck": None}
    assert plan["capacity"]["link_bytes_per_s_needed"] is plan["best"] is plan["measured"] is None
    (caution,) = [text for text in plan["warnings"] if "measured" in text]
    assert caution.endswith(f"; measure anew by `dspark-train bench pipeline --topology {path}`")
    assert "was measured with data.seq_len 4096, not 8192:" in caution


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"{", ":1: is not JSON"),
        (b"\xff", ": is not UTF-8"),
        (b'{"version": 1}', ": measured_at is missing"),
    ],
)
def test_rates_that_cannot_be_read_end_with_2(tmp_path: Path, shipped: Resolve, data: bytes, said: str) -> None:
    path = measured(tmp_path, shipped)
    file = path.with_suffix(".profile.json")
    file.write_bytes(data)
    result = run("--topology", str(path), "--json")
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith(f"error: {file}{said}")
    assert result.stderr.endswith(f"`dspark-train bench pipeline --topology {path}`, or remove the file\n")
    assert result.stderr.count("\n") == 1


def test_secrets_are_not_shown() -> None:
    arguments = ("--topology", "topologies/quickstart.yaml", "--set", "engines.env={HF_TOKEN: hf_abc}")
    assert "hf_abc" not in run(*arguments).stdout + run(*arguments, "--json").stdout


def test_planning_imports_nothing_heavy() -> None:
    code = (
        "import sys; from dspark_train.cli.app import run;"
        "run(['plan', '--topology', 'topologies/quickstart.yaml']); run(['schema']);"
        f"print([name for name in {HELD!r} if name in sys.modules], file=sys.stderr)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert result.stderr == "[]\n"


@pytest.mark.parametrize("width", [40, 80, 200])
def test_a_shell_reads_back_the_words_that_were_printed(shipped: Resolve, width: int) -> None:
    awkward = ["it's", "a b", "", "$HOME", "x" * 300, "'" * 70, '{"a":"b c"}', "\\", "--last"]
    for words in (awkward, list(build_plan(shipped("gb300-3node")).process("engine-1.1").argv)):
        lines = shell_lines(words, width)
        assert max(len(line) for line in lines) <= width
        script = "printf '%s\\0' " + "\n".join(lines)
        said = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True).stdout
        assert said.split("\0")[:-1] == words


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (None, "unknown"),
        (0, "0 B"),
        (1023, "1023 B"),
        (9216, "9.00 KiB"),
        (22548578304, "21.00 GiB"),
        (2**50, "1024.00 TiB"),
    ],
)
def test_bytes_are_shown_with_a_unit(num_bytes: float | None, text: str) -> None:
    assert human(num_bytes) == text


def test_a_local_target_is_planned_by_its_absolute_path(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    target.joinpath("config.json").write_text(
        json.dumps({"num_hidden_layers": 30, "hidden_size": 576, "vocab_size": 49152})
    )
    result = run("--topology", "topologies/quickstart.yaml", "--set", f"target.model={target}", "--json")
    plan = json.loads(result.stdout)
    engine = next(process for process in plan["processes"] if process["kind"] == "engine")
    assert engine["argv"][4] == str(target)
    assert engine["env"]["HF_HUB_OFFLINE"] == "1"
