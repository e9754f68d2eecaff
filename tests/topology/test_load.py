"""Reading right topologies, and overrides."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from dspark_train.errors import TopologyError
from dspark_train.topology.facts import TargetFacts
from dspark_train.topology.load import load
from dspark_train.topology.resolve import Resolved, resolve

SHIPPED = sorted((Path(__file__).parents[2] / "topologies").glob("*.yaml"))
QUICKSTART = Path(__file__).parents[2] / "topologies" / "quickstart.yaml"


@pytest.mark.parametrize("file", SHIPPED, ids=lambda file: file.stem)
def test_each_shipped_topology_loads_and_is_named_after_its_file(file: Path) -> None:
    assert load(file).name == file.stem


def test_the_shipped_topologies_are_those_that_the_documentation_names() -> None:
    assert {file.stem for file in SHIPPED} >= {
        "quickstart",
        "single-node",
        "qwen3-8b",
        "gb300-3node",
        "gb300-12node",
        "gb300-nvl72",
    }


def test_an_override_replaces_a_value_and_is_read_as_yaml() -> None:
    topology = load(QUICKSTART, ["draft.train.lr=1e-4", "target.layers=[1, 14]", "store.protocol=rdma", "name=b"])
    assert topology.draft.train["lr"] == 0.0001
    assert topology.target.layers == (1, 14)
    assert (topology.store.protocol, topology.name) == ("rdma", "b")


def test_an_override_adds_a_section_and_the_last_of_two_wins() -> None:
    topology = load(QUICKSTART, ["ledger.lease_s=70", "ledger.lease_s=90", "engines.env={A: b}"])
    assert topology.ledger.lease_s == 90
    assert topology.engines.env == {"A": "b"}


def test_off_is_a_word_and_not_false() -> None:
    assert load(QUICKSTART, ["balance.mode=off"]).balance.mode == "off"


def test_an_override_can_switch_an_optional_value_off() -> None:
    assert load(QUICKSTART, ["run.max_steps=null", "run.epochs=1"]).run.max_steps is None


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        (
            "engines.count.max=0",
            "--set engines.count.max=0: engines.count.max (0) is below 1: use 1 or more",
        ),
        (
            "engines.cout.max=4",
            "--set engines.cout.max=4: engines.cout is not a known key: did you mean count?",
        ),
        (
            "draft.train.lr=fast",
            '--set draft.train.lr=fast: draft.train.lr ("fast") is not a number: write a number, without quotes',
        ),
        (
            "data.seq_len",
            "--set data.seq_len: is not of the form key=value: write --set key.of.the.file=value, such as "
            "--set engines.count.max=4",
        ),
        (
            "=4",
            "--set =4: is not of the form key=value: write --set key.of.the.file=value, such as "
            "--set engines.count.max=4",
        ),
        (
            "name=[a",
            "--set name=[a: name has a value that is not YAML (did not find expected ',' or ']'): put it in quotes",
        ),
        (
            "name.first=a",
            "--set name.first=a: name is a text, which has no keys: set it as a whole",
        ),
        (
            "engines.count={start: 3, max: 1}",
            "--set engines.count={start: 3, max: 1}: engines.count.start (3) is above engines.count.max (1): lower "
            "start or raise max",
        ),
    ],
)
def test_a_wrong_override_is_named_in_place_of_a_line(override: str, expected: str) -> None:
    with pytest.raises(TopologyError) as caught:
        load(QUICKSTART, [override])
    assert str(caught.value) == expected


def test_a_later_problem_with_a_loaded_topology_names_the_line_of_its_value() -> None:
    topology = load(QUICKSTART, ["data.seq_len=256"])
    line = (
        QUICKSTART.read_text()
        .split("\n")
        .index(next(x for x in QUICKSTART.read_text().split("\n") if "step_packs" in x))
    )
    assert str(topology.problem("data.step_packs", "is a", "b")) == f"{QUICKSTART}:{line + 1}: data.step_packs is a: b"
    assert str(topology.problem("data.seq_len", "is a", "b")) == "--set data.seq_len=256: data.seq_len is a: b"
    section = next(n for n, x in enumerate(QUICKSTART.read_text().split("\n")) if x.startswith("store:"))
    assert topology.problem("store.high_mark_frac", "is a", "b").line == section + 1


def test_a_resolved_topology_comes_back_whole_from_json_and_from_a_pickle() -> None:
    resolved = resolve(load(QUICKSTART), TargetFacts(num_layers=30))
    assert Resolved.model_validate_json(resolved.model_dump_json()) == resolved
    assert pickle.loads(pickle.dumps(resolved)) == resolved
