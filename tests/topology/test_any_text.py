"""Whatever the file holds, it is a topology or it is refused in sentences: never a traceback."""

from __future__ import annotations

import tempfile
from pathlib import Path

import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from dspark_train.errors import TopologyError
from dspark_train.plan.build import build_plan
from dspark_train.topology.facts import TargetFacts
from dspark_train.topology.load import load
from dspark_train.topology.phrases import all_keys
from dspark_train.topology.resolve import resolve
from dspark_train.topology.schema import Topology

SHIPPED = sorted((Path(__file__).parents[2] / "topologies").glob("*.yaml"))
TRAIN = ["draft.train.loss_fn", "draft.train.markov_rank", "draft.train.draft_vocab_size", "draft.train.draft_config"]
VLLM = ["engines.vllm.max_model_len", "engines.vllm.max_num_batched_tokens", "engines.env.A", "a.b"]

texts = st.sampled_from([file.read_text() for file in SHIPPED])
keys = st.sampled_from([*all_keys(Topology), *TRAIN, *VLLM])
values = st.sampled_from(
    [
        *("0", "-1", "1", "2", "3", "7", "64", "1000000", "2.5", "1e400", "1e-400", ".nan", "-.inf", "0x10", "1_0"),
        *("9" * 400, "null", "~", "true", "off", "''", "x", "'1'", "\u00e9", "|\n    text", "fsdp", "eagle3", "mtp"),
        *("[]", "[1]", "[1, 2]", "[x]", "{}", "{a: 1}", "{a: {b: [c]}}", "&a [1]", "!!int 3", "!x y", "*a", "bfloat16"),
        *("{start: 2, max: 3}", "{count: 1, gpus: 8}", "{count: 2, gpus: 0}", "'{\"ce\": 1}'"),
    ]
)


def refused_or_planned(text: str, overrides: list[str]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "a.yaml"
        file.write_text(text, encoding="utf-8", errors="surrogatepass")
        try:
            plan = build_plan(resolve(load(file, overrides), TargetFacts()))
        except TopologyError as error:
            assert error.problems and all(problem.text and problem.remedy for problem in error.problems)  # noqa: PT017, PT018
        else:
            assert plan.processes


@settings(max_examples=40, deadline=None)
@given(texts, st.lists(st.tuples(st.integers(0, 10_000), values), min_size=1, max_size=4))
def test_any_values_in_place_of_the_right_ones(text: str, changes: list[tuple[int, str]]) -> None:
    lines = text.split("\n")
    for place, value in changes:
        number = place % len(lines)
        key, colon, _ = lines[number].partition(": ")
        lines[number] = f"{key}: {value}" if colon else lines[number]
    refused_or_planned("\n".join(lines), [])


@settings(max_examples=40, deadline=None)
@given(texts, st.integers(0, 3000), st.integers(0, 60), st.text(max_size=12))
def test_any_text_in_place_of_a_piece(text: str, start: int, length: int, inserted: str) -> None:
    refused_or_planned(text[:start] + inserted + text[start + length :], [])


@settings(max_examples=40, deadline=None)
@given(texts, st.lists(st.tuples(keys, values), max_size=4))
def test_any_overrides(text: str, changes: list[tuple[str, str]]) -> None:
    refused_or_planned(text, [f"{key}={value}" for key, value in changes])


def test_a_topology_that_a_run_has_written_can_be_read_again(tmp_path: Path) -> None:
    for file in SHIPPED:
        topology = load(file, ["draft.train.lr=1e-5", "balance.mode=off", "engines.env={A: 'off', B: '1'}"])
        again = tmp_path / file.name
        again.write_text(yaml.safe_dump(topology.model_dump(mode="json", exclude_unset=True), sort_keys=False))
        assert load(again) == topology
