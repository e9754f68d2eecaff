import json
import time
from pathlib import Path

import pytest

from dspark_train.data.target import read_target_facts
from dspark_train.errors import DataError

LLAMA = {"num_hidden_layers": 30, "hidden_size": 576, "vocab_size": 49152, "num_attention_heads": 9, "head_dim": 64}


def make(directory: Path, config: object) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config))
    return directory


def test_figures_of_a_model_directory_and_the_size_of_its_weights(tmp_path: Path) -> None:
    make(tmp_path, LLAMA)
    for name, size in (("model-00001-of-00002.safetensors", 700), ("model-00002-of-00002.safetensors", 300)):
        (tmp_path / name).write_bytes(bytes(size))
    facts = read_target_facts(str(tmp_path))
    assert (facts.num_layers, facts.hidden_size, facts.vocab_size, facts.head_dim) == (30, 576, 49152, 64)
    assert facts.num_key_value_heads is None
    assert facts.weight_bytes == 1000
    assert (facts.is_local, facts.path) == (True, str(tmp_path))
    assert facts.source == str(tmp_path / "config.json")


def test_the_index_of_the_weights_wins_over_the_files_that_are_there(tmp_path: Path) -> None:
    make(tmp_path, LLAMA)
    (tmp_path / "model-00001-of-00009.safetensors").write_bytes(bytes(10))
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {"total_size": 9000}}))
    assert read_target_facts(str(tmp_path)).weight_bytes == 9000


def test_figures_of_a_nested_text_config(tmp_path: Path) -> None:
    make(tmp_path, {"model_type": "seer", "text_config": LLAMA, "vision_config": {"hidden_size": 1152}})
    facts = read_target_facts(str(tmp_path))
    assert (facts.num_layers, facts.hidden_size, facts.vocab_size) == (30, 576, 49152)


def test_a_hub_id_is_read_from_the_local_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    repository = tmp_path / "hub" / "models--org--name"
    make(repository / "snapshots" / "abc", LLAMA)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("abc")
    facts = read_target_facts("org/name")
    assert facts.num_layers == 30
    assert (facts.is_local, facts.path) == (False, "")
    assert read_target_facts("org/other").num_layers is None


def test_a_target_that_is_not_there_yet_has_no_facts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    facts = read_target_facts(str(tmp_path / "later"))
    assert facts.num_layers is None
    assert facts.source == ""


def test_figures_that_are_no_numbers_stay_unknown(tmp_path: Path) -> None:
    facts = read_target_facts(str(make(tmp_path, {"num_hidden_layers": "many", "hidden_size": 0, "vocab_size": True})))
    assert (facts.num_layers, facts.hidden_size, facts.vocab_size, facts.weight_bytes) == (None, None, None, None)


def test_a_broken_config_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"num_hidden_layers": 3')
    with pytest.raises(DataError) as caught:
        read_target_facts(str(tmp_path))
    assert str(caught.value) == (
        f"{tmp_path}/config.json: cannot be read: it is not JSON: get the model again, or correct target.model"
    )


def test_reading_takes_milliseconds(tmp_path: Path) -> None:
    make(tmp_path, LLAMA)
    best_s = min(_timed(str(tmp_path)) for _ in range(5))
    assert best_s < 0.02


def _timed(model: str) -> float:
    started_s = time.perf_counter()
    read_target_facts(model)
    return time.perf_counter() - started_s
