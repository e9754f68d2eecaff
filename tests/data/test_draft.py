"""What is read of a draft and of a target's weights, and the refusals that eval, export, serve and launch share."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from dspark_train.cli.app import run
from dspark_train.cli.eval_subject import described
from dspark_train.data.draft import PROVENANCE, check_pair, read_draft_facts
from dspark_train.data.target import read_target_facts
from dspark_train.data.target_identity import read_identity
from dspark_train.errors import DataError, PairingError

CONFIG = {"architectures": ["LlamaForCausalLM"], "hidden_size": 8, "vocab_size": 32, "num_hidden_layers": 4}


def write_target(directory: Path, *, fill: int = 1, shards: int = 1, **changed: Any) -> Path:
    """A target's config and weights of single bytes, in one file or several."""
    directory.mkdir(parents=True)
    (directory / "config.json").write_text(json.dumps(CONFIG | changed))
    names = ["model.embed_tokens.weight", "model.layers.0.input_layernorm.weight", "model.norm.weight"]
    if shards == 1:
        write_tensors(directory / "model.safetensors", dict.fromkeys(names, bytes([fill]) * 16))
        return directory
    for place, name in enumerate(names):
        write_tensors(directory / f"part-{place}.safetensors", {name: bytes([fill]) * 16})
    index = {"weight_map": {name: f"part-{place}.safetensors" for place, name in enumerate(names)}}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    return directory


def write_tensors(path: Path, tensors: dict[str, bytes]) -> None:
    header, data = {}, b""
    for name, value in tensors.items():
        header[name] = {"dtype": "U8", "shape": [len(value)], "data_offsets": [len(data), len(data) + len(value)]}
        data += value
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def write_draft(directory: Path, target: Path, *, told: bool = True, **changed: Any) -> Path:
    directory.mkdir(parents=True)
    config = {
        "speculators_model_type": "dflash",
        "aux_hidden_state_layer_ids": [1, 2],
        "draft_vocab_size": 16,
        "transformer_layer_config": {"hidden_size": 8, "vocab_size": 32},
        "speculators_config": {
            "proposal_methods": [{"speculative_tokens": 3}],
            "verifier": {"name_or_path": str(target), "architectures": ["LlamaForCausalLM"]},
        },
    }
    (directory / "config.json").write_text(json.dumps(config | changed))
    if told:
        serving = {"target": str(target), "path": str(target), "device": "cpu", "dtype": "float32"}
        provenance = {"target_identity": read_identity(target), "serving": serving}
        (directory / PROVENANCE).write_text(json.dumps(provenance))
    return directory


def test_a_drafts_facts_are_those_of_its_config(tmp_path: Path) -> None:
    target = write_target(tmp_path / "target")
    facts = read_draft_facts(str(write_draft(tmp_path / "draft", target)))
    assert facts is not None
    assert (facts.algorithm, facts.target, facts.layer_ids) == ("dflash", str(target), (1, 2))
    assert (facts.hidden_size, facts.vocab_size, facts.draft_vocab_size) == (8, 32, 16)
    assert facts.num_speculative_tokens == 3
    assert facts.identity == read_identity(target) != ""


def test_the_width_of_the_target_is_not_that_of_a_draft_that_differs(tmp_path: Path) -> None:
    directory = write_draft(tmp_path / "draft", tmp_path, told=False, target_hidden_size=64)
    facts = read_draft_facts(str(directory))
    assert facts is not None
    assert facts.hidden_size == 64


def test_what_is_no_draft_is_named_and_what_is_not_here_is_unknown(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no draft of speculators' format"):
        read_draft_facts(str(write_target(tmp_path / "target")))
    with pytest.raises(DataError, match="cannot be read"):
        read_draft_facts(str(tmp_path))
    assert read_draft_facts("nobody/nothing") is None


def test_the_same_weights_are_one_target_however_they_are_cut_into_files(tmp_path: Path) -> None:
    one, cut = (read_identity(write_target(tmp_path / str(n), shards=n)) for n in (1, 3))
    assert one == cut != ""


def test_other_weights_of_the_same_shape_are_another_target(tmp_path: Path) -> None:
    one, other = (read_identity(write_target(tmp_path / str(n), fill=n)) for n in (1, 2))
    assert one != other


def test_weights_that_are_not_here_have_no_identity(tmp_path: Path) -> None:
    assert read_identity(tmp_path) == ""
    (tmp_path / "model.safetensors").write_bytes(b"\xff" * 64)
    assert read_identity(tmp_path) == ""


def test_a_copy_of_the_target_elsewhere_is_the_same_target(tmp_path: Path) -> None:
    draft = read_draft_facts(str(write_draft(tmp_path / "draft", write_target(tmp_path / "target"))))
    assert draft is not None
    check_pair(draft, read_target_facts(str(write_target(tmp_path / "copy"))), "copy")


def test_other_weights_are_refused_and_can_be_allowed(tmp_path: Path) -> None:
    draft = read_draft_facts(str(write_draft(tmp_path / "draft", write_target(tmp_path / "target"))))
    tuned = read_target_facts(str(write_target(tmp_path / "tuned", fill=9)))
    assert draft is not None
    with pytest.raises(PairingError, match=r"but tuned has other weights.*--other-target"):
        check_pair(draft, tuned, "tuned")
    check_pair(draft, tuned, "tuned", other_target=True)


def test_serve_prints_the_command_and_refuses_a_wrong_target(tmp_path: Path, capsys: Any) -> None:
    draft = write_draft(tmp_path / "draft", write_target(tmp_path / "target"))
    assert run(["serve", str(draft), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["nodes"][0][4] == str(tmp_path / "target")
    wrong = write_target(tmp_path / "wrong", vocab_size=64)
    assert run(["serve", str(draft), "--target", str(wrong)]) == 2
    assert "a vocabulary of 32 tokens, and" in capsys.readouterr().err


def test_eval_refuses_a_wrong_target_and_other_weights_unless_they_are_allowed(tmp_path: Path) -> None:
    draft = write_draft(tmp_path / "draft", write_target(tmp_path / "target"))
    assert described(draft, None, trust_remote_code=False).num_tokens == 3
    with pytest.raises(PairingError, match="a vocabulary of 32 tokens, and"):
        described(draft, str(write_target(tmp_path / "wrong", vocab_size=64)), trust_remote_code=False)
    tuned = str(write_target(tmp_path / "tuned", fill=9))
    with pytest.raises(PairingError, match="--other-target"):
        described(draft, tuned, trust_remote_code=False)
    assert described(draft, tuned, trust_remote_code=False, other_target=True).target == tuned


def test_serve_without_the_targets_options_asks_for_a_topology(tmp_path: Path, capsys: Any) -> None:
    draft = write_draft(tmp_path / "draft", write_target(tmp_path / "target"), told=False)
    assert run(["serve", str(draft)]) == 2
    assert "--topology" in capsys.readouterr().err


def test_launch_refuses_to_start_from_a_draft_of_other_layers(tmp_path: Path, capsys: Any) -> None:
    target = write_target(tmp_path / "target")
    draft = write_draft(tmp_path / "draft", target)
    topology = f"""
name: wrong-start
target: {{model: {target}, layers: [1, 3]}}
draft: {{algorithm: dflash, train: {{from_pretrained: {draft}}}}}
data: {{path: {tmp_path}/data, seq_len: 64, step_packs: 2}}
nodes: {{shared: {{count: 1, gpus: 0}}}}
engines: {{count: {{start: 1, max: 1}}, max_in_flight_tokens: 64}}
trainers: {{ranks: {{start: 1, max: 1}}}}
store: {{segment_gib: 1}}
run: {{max_steps: 1}}
"""
    (tmp_path / "topology.yaml").write_text(topology)
    assert run(["launch", "--topology", str(tmp_path / "topology.yaml")]) == 2
    assert "the draft reads layers 1, 2, and target.layers is 1, 3" in capsys.readouterr().err
