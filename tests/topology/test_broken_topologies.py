"""Broken topology files, each with exactly what is said about it."""

from __future__ import annotations

from pathlib import Path

import pytest

from dspark_train.errors import TopologyError
from dspark_train.topology.load import load

GOOD = """\
name: small
target:
  model: some/target
  layers: [2, 15, 27]
draft:
  algorithm: dspark
  train:
    num_layers: 2
    lr: 1e-3
data:
  path: some/data
  seq_len: 512
  step_packs: 4
nodes:
  shared: {count: 1, gpus: 0}
engines:
  count: {start: 1, max: 2}
  vllm: {max_model_len: 513}
trainers:
  ranks: {start: 2, max: 4}
store:
  segment_gib: 0.25
run:
  max_steps: 60
"""
GPUS = ("shared: {count: 1, gpus: 0}", "shared: {count: 1, gpus: 8}")
SPLIT = ("shared: {count: 1, gpus: 0}", "inference: {count: 2, gpus: 4}\n  training: {count: 1, gpus: 4}")

BROKEN = {
    "an unknown key, near a known one": (
        [("  seq_len: 512", "  seq_length: 512")],
        [
            "FILE:10: data.seq_len is missing: add it (Tokens in one pack; longer samples are cut)",
            "FILE:12: data.seq_length is not a known key: did you mean seq_len?",
        ],
    ),
    "a key of another section": (
        [("name: small", "name: small\nseq_len: 512")],
        ["FILE:2: seq_len is not a known key: did you mean data.seq_len?"],
    ),
    "a key a level too high": (
        [("count: {start: 1, max: 2}", "count: {start: 1, max: 2}\n  start: 1")],
        ["FILE:18: engines.start is not a known key: did you mean engines.count.start?"],
    ),
    "an unknown key like no other": (
        [("gpus: 0}", "gpus: 0, zzz: 1}")],
        ["FILE:15: nodes.shared.zzz is not a known key: use one of count, gpus"],
    ),
    "a missing section": (
        [("store:\n  segment_gib: 0.25\n", "")],
        ["FILE: store is missing: add it (Mooncake, with a segment of memory in every rank; or a directory)"],
    ),
    "a section without keys": (
        [("  segment_gib: 0.25\n", "")],
        ["FILE:21: store is empty: write its keys below it, or remove the line"],
    ),
    "a section that is a number": (
        [("store:\n  segment_gib: 0.25", "store: 0.25")],
        ["FILE:21: store (0.25) is not a mapping: write its keys below it"],
    ),
    "a text for a number": (
        [("seq_len: 512", "seq_len: long")],
        ['FILE:12: data.seq_len ("long") is not a whole number: write a whole number'],
    ),
    "a quoted number": (
        [("seq_len: 512", "seq_len: '512'")],
        ['FILE:12: data.seq_len ("512") is not a whole number: write a whole number'],
    ),
    "a fraction for a count": (
        [("step_packs: 4", "step_packs: 4.5")],
        ["FILE:13: data.step_packs (4.5) is not a whole number: write a whole number"],
    ),
    "true for a count": (
        [("max_steps: 60", "max_steps: true")],
        ["FILE:24: run.max_steps (true) is not a whole number: write a whole number"],
    ),
    "a number for a text": (
        [("name: small", "name: 7")],
        ["FILE:1: name (7) is not a text: put it in quotes"],
    ),
    "yes for true": (
        [("model: some/target", "model: some/target\n  trust_remote_code: yes")],
        ['FILE:4: target.trust_remote_code ("yes") is not true or false: write true or false'],
    ),
    "nothing for a number": (
        [("seq_len: 512", "seq_len:")],
        ["FILE:12: data.seq_len is empty: write a whole number, or remove the line"],
    ),
    "infinity": (
        [("segment_gib: 0.25", "segment_gib: .inf")],
        ["FILE:22: store.segment_gib (Infinity) is not a finite number: write a number"],
    ),
    "a number below its bound": (
        [("seq_len: 512", "seq_len: 8")],
        ["FILE:12: data.seq_len (8) is below 16: use 16 or more"],
    ),
    "a number at an open bound": (
        [("segment_gib: 0.25", "segment_gib: 0")],
        ["FILE:22: store.segment_gib (0) is not above 0: use more than 0"],
    ),
    "a part of one": (
        [("seq_len: 512", "seq_len: 512\n  validation_frac: 1.0")],
        ["FILE:13: data.validation_frac (1.0) is not below 1: use less than 1"],
    ),
    "a word that is none of the known ones, but near": (
        [("algorithm: dspark", "algorithm: dspak")],
        ['FILE:6: draft.algorithm ("dspak") is not a known value: did you mean dspark?'],
    ),
    "a word that is none of the known ones": (
        [("segment_gib: 0.25", "segment_gib: 0.25\n  protocol: nvlink")],
        ['FILE:23: store.protocol ("nvlink") is not a known value: use one of tcp, rdma, disk'],
    ),
    "a name with a blank": (
        [("name: small", "name: My run")],
        [
            "FILE:1: name (\"My run\") has characters that it may not: use lower-case letters, digits, '.', '_' and "
            "'-', at most 63, with a letter or digit at both ends"
        ],
    ),
    "an empty model": (
        [("model: some/target", "model: ''")],
        ["FILE:3: target.model is empty: write a value"],
    ),
    "no layers": (
        [("layers: [2, 15, 27]", "layers: []")],
        ["FILE:4: target.layers names no layer: name those that dspark reads: early, middle and late"],
    ),
    "one layer, not in a list": (
        [("layers: [2, 15, 27]", "layers: 2")],
        ["FILE:4: target.layers (2) is not a list: write [a, b, c]"],
    ),
    "a layer that is no number": (
        [("layers: [2, 15, 27]", "layers: [2, last]")],
        ['FILE:4: target.layers[1] ("last") is not a whole number: write a whole number'],
    ),
    "layers out of order": (
        [("layers: [2, 15, 27]", "layers: [15, 2, 15]")],
        ["FILE:4: target.layers ([15, 2, 15]) is not ascending: write [2, 15]"],
    ),
    "a layer counted from the end": (
        [("layers: [2, 15, 27]", "layers: [2, -3]")],
        ["FILE:4: target.layers[1] (-3) is below 0: count layers from 1; 0 is the embedding"],
    ),
    "max below min": (
        [("count: {start: 1, max: 2}", "count: {start: 2, min: 4, max: 2}")],
        ["FILE:17: engines.count.max (2) is below engines.count.min (4): raise max or lower min"],
    ),
    "start above max": (
        [("count: {start: 1, max: 2}", "count: {start: 3, max: 2}")],
        ["FILE:17: engines.count.start (3) is above engines.count.max (2): lower start or raise max"],
    ),
    "start below min": (
        [("ranks: {start: 2, max: 4}", "ranks: {start: 2, min: 3, max: 4}")],
        ["FILE:20: trainers.ranks.start (2) is below trainers.ranks.min (3): raise start or lower min"],
    ),
    "more ranks than packs": (
        [("ranks: {start: 2, max: 4}", "ranks: {start: 2, max: 5}")],
        [
            "FILE:20: trainers.ranks.max (5) is above data.step_packs (4): lower max or raise step_packs: a rank "
            "without a pack only waits"
        ],
    ),
    "no nodes": (
        [("nodes:\n  shared: {count: 1, gpus: 0}", "nodes: {}")],
        ["FILE:14: nodes describes no nodes: describe shared alone, or inference and training"],
    ),
    "shared nodes beside others": (
        [("shared: {count: 1, gpus: 0}", "shared: {count: 1, gpus: 0}\n  training: {count: 1, gpus: 0}")],
        ["FILE:15: nodes.shared stands beside nodes.training: describe shared alone, or inference and training"],
    ),
    "inference nodes alone": (
        [("shared: {count: 1, gpus: 0}", "inference: {count: 1, gpus: 0}")],
        ["FILE:14: nodes has no training nodes beside inference: describe shared alone, or inference and training"],
    ),
    "GPUs on one side": (
        [("shared: {count: 1, gpus: 0}", "inference: {count: 1, gpus: 8}\n  training: {count: 1, gpus: 0}")],
        [
            "FILE:16: nodes.training.gpus (0) does not go with nodes.inference.gpus (8): give both kinds of nodes "
            "GPUs, or neither"
        ],
    ),
    "an engine that does not divide over its nodes": (
        [SPLIT, ("  vllm:", "  nodes_per_engine: 2\n  tensor_parallel: 5\n  vllm:")],
        [
            "FILE:20: engines.tensor_parallel (5) is not a multiple of engines.nodes_per_engine (2): give each node of "
            "an engine the same share"
        ],
    ),
    "an engine larger than its node": (
        [SPLIT, ("  vllm:", "  tensor_parallel: 8\n  vllm:")],
        [
            "FILE:19: engines.tensor_parallel (8) takes 8 GPUs of a node that has 4: lower it or spread the engine "
            "over more nodes"
        ],
    ),
    "an engine over more nodes than a set has": (
        [SPLIT, ("  vllm:", "  tensor_parallel: 12\n  nodes_per_engine: 3\n  vllm:")],
        [
            "FILE:20: engines.nodes_per_engine (3) is above nodes.inference.count (2): an engine keeps to one set: "
            "lower it or raise count"
        ],
    ),
    "more engines than their nodes hold": (
        [SPLIT, ("count: {start: 1, max: 2}", "tensor_parallel: 4\n  count: {start: 3, max: 4}")],
        ["FILE:19: engines.count.start (3) is above the 2 that the nodes hold: lower it or describe more nodes"],
    ),
    "more ranks than GPUs": (
        [SPLIT, ("step_packs: 4", "step_packs: 8"), ("ranks: {start: 2, max: 4}", "ranks: {start: 5, max: 8}")],
        [
            "FILE:21: trainers.ranks.start (5) is above the 4 GPUs: lower it or describe more nodes: a rank takes one "
            "GPU"
        ],
    ),
    "engines and ranks that do not fit together": (
        [GPUS, ("count: {start: 1, max: 2}", "tensor_parallel: 2\n  count: {start: 4, max: 4}")],
        [
            "FILE:21: trainers.ranks.start (2) is above the 0 GPUs left beside 4 engines: lower it or describe more "
            "nodes: a rank takes one GPU"
        ],
    ),
    "a vLLM that cannot take a whole sample": (
        [("max_model_len: 513", "max_model_len: 512")],
        [
            "FILE:18: engines.vllm.max_model_len (512) is not above data.seq_len (512): use 513 or more: a sample, and "
            "the one token that vLLM generates"
        ],
    ),
    "a vLLM option that another key decides": (
        [("max_model_len: 513", "tensor_parallel_size: 2")],
        [
            "FILE:18: engines.vllm.tensor_parallel_size follows from another key: remove it and set "
            "engines.tensor_parallel"
        ],
    ),
    "a vLLM option that the plan decides": (
        [("max_model_len: 513", "port: 8000")],
        ["FILE:18: engines.vllm.port cannot be given: remove it: the plan reserves a port for each engine"],
    ),
    "vLLM options as on its command line": (
        [("max_model_len: 513", "max-num-seqs: 8, no_enable_prefix_caching: true")],
        [
            "FILE:18: engines.vllm.max-num-seqs is not written with underscores: write max_num_seqs",
            "FILE:18: engines.vllm.no_enable_prefix_caching is a negated option: write enable_prefix_caching: false",
        ],
    ),
    "an environment variable that the plan sets": (
        [("  vllm:", "  env: {OMP_NUM_THREADS: '4', BAD-NAME: x}\n  vllm:")],
        [
            "FILE:18: engines.env.OMP_NUM_THREADS is set by the plan: set engines.cpu_threads instead",
            "FILE:18: engines.env.BAD-NAME is not a name of an environment variable: use letters, digits and _",
        ],
    ),
    "too few tokens in flight for one sample": (
        [("  vllm:", "  max_in_flight_tokens: 256\n  vllm:")],
        [
            "FILE:18: engines.max_in_flight_tokens (256) is below data.seq_len (512): use 512 or more: a sample of "
            "seq_len tokens could never be requested"
        ],
    ),
    "a lease shorter than a request": (
        [("  max_steps: 60", "  max_steps: 60\nledger: {lease_s: 20}")],
        [
            "FILE:25: ledger.lease_s (20) is not above engines.request_timeout_s (50): raise lease_s: a sample would "
            "be handed out again while its request still runs"
        ],
    ),
    "RDMA devices without RDMA": (
        [("segment_gib: 0.25", "segment_gib: 0.25\n  device: mlx5_0")],
        [
            'FILE:23: store.device ("mlx5_0") has no effect with store.protocol tcp: set protocol: rdma, or remove '
            "device"
        ],
    ),
    "a run without an end": (
        [("  max_steps: 60", "  seed: 1")],
        ["FILE:23: run has no end: set run.max_steps, run.epochs or both"],
    ),
    "an unknown training field": (
        [("num_layers: 2", "num_layer: 2")],
        ["FILE:8: draft.train.num_layer is not a known key: did you mean num_layers?"],
    ),
    "a training field of the wrong type": (
        [("lr: 1e-3", "lr: fast")],
        ['FILE:9: draft.train.lr ("fast") is not a number: write a number, without quotes'],
    ),
    "a training field out of bounds": (
        [("lr: 1e-3", "lr: -1e-3")],
        ["FILE:9: draft.train.lr (-0.001) is not above 0: use more than 0"],
    ),
    "a training field with an unknown word": (
        [("lr: 1e-3", "optimizer: muonn")],
        ['FILE:9: draft.train.optimizer ("muonn") is not a known value: did you mean muon?'],
    ),
    "training fields that the topology decides": (
        [("lr: 1e-3", "max_steps: 5\n    save_path: out\n    mooncake_master: here:1")],
        [
            "FILE:9: draft.train.max_steps follows from another key: remove it and set run.max_steps",
            "FILE:10: draft.train.save_path has no effect here: remove it: checkpoints are in the run's directory",
            "FILE:11: draft.train.mooncake_master follows from another key: remove it and set store",
        ],
    ),
    "a training field of another algorithm": (
        [("algorithm: dspark", "algorithm: dflash"), ("lr: 1e-3", "markov_rank: 64")],
        ["FILE:9: draft.train.markov_rank is a field of dspark, not of dflash: remove it"],
    ),
    "an unknown loss": (
        [("lr: 1e-3", "loss_fn: mse")],
        [
            'FILE:9: draft.train.loss_fn ("mse") is not a known loss: use one of ce, jsd, kl_div, lk_hybrid, nla, rkl, '
            """tv, or '{"ce": 0.1, "tv": 0.9}'"""
        ],
    ),
    "a draft defined twice": (
        [("lr: 1e-3", "from_pretrained: some/draft")],
        ["FILE:8: draft.train.num_layers is already decided by draft.train.from_pretrained: remove one of the two"],
    ),
    "kernels that need a GPU": (
        [("lr: 1e-3", "loss_implementation: fused\n    draft_attn_impl: simple_flex_attention")],
        [
            'FILE:9: draft.train.loss_implementation ("fused") does not run on CPU: use eager, or remove the line',
            'FILE:10: draft.train.draft_attn_impl ("simple_flex_attention") does not run on CPU: use sdpa, or remove '
            "the line",
        ],
    ),
    "a confidence head without its input": (
        [("lr: 1e-3", "markov_rank: 0")],
        [
            "FILE:9: draft.train.markov_rank (0) leaves the confidence head without its input: set "
            "confidence_head_with_markov: false, or a markov_rank above 0"
        ],
    ),
    "a key written twice": (
        [("run:", "name: other\nrun:")],
        ["FILE:1: name is written twice, on lines 1 and 23: keep one of them"],
    ),
    "a tag": (
        [("name: small", "name: !!python/name:os.system small")],
        ["FILE:1: name has the tag !!python/name:os.system: remove the tag"],
    ),
    "a merge key": (
        [("  segment_gib: 0.25", "  <<: {segment_gib: 0.25}\n  segment_gib: 0.25")],
        ["FILE:21: store holds a merge key <<: write plain keys"],
    ),
    "a tab": (
        [("  segment_gib", "\tsegment_gib")],
        ["FILE:22: is indented with a tab: YAML wants spaces"],
    ),
    "a colon too many": (
        [("seq_len: 512", "seq_len: 512: 3")],
        [
            "FILE:12: is not valid YAML (mapping values are not allowed in this context): look for a missing colon, "
            "quote or bracket, or a wrong indent, on this line or the one before"
        ],
    ),
    "an open bracket": (
        [("layers: [2, 15, 27]", "layers: [2, 15, 27")],
        [
            "FILE:5: is not valid YAML (did not find expected ',' or ']'): look for a missing colon, quote or bracket, "
            "or a wrong indent, on this line or the one before"
        ],
    ),
    "a second document": (
        [("run:", "---\nrun:")],
        ["FILE:23: begins a second YAML document: a topology is one document: remove the '---'"],
    ),
    "a control character": (
        [("name: small", "name: sm\x07all")],
        ["FILE:1: holds the control character U+0007: save it as plain text"],
    ),
    "an anchor that holds itself": (
        [("vllm: {max_model_len: 513}", "vllm: &a {max_model_len: 513, more: *a}")],
        ["FILE:18: engines.vllm.more expands without end: write it without aliases"],
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_topology_is_refused_with_line_key_value_and_remedy(case: str, tmp_path: Path) -> None:
    edits, expected = BROKEN[case]
    text = GOOD
    for old, new in edits:
        assert old in text
        text = text.replace(old, new)
    assert _complaints(tmp_path, text.encode()) == expected


def test_the_text_that_they_break_is_right(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(GOOD)
    assert load(file).name == "small"


FILES = {
    "empty": (b"", ["FILE: is empty: start from a file in topologies/"]),
    "comments only": (b"# name: a\n", ["FILE: is empty: start from a file in topologies/"]),
    "a list": (b"- name: a\n", ["FILE:1: holds a list, not keys: write keys with values, such as name: my-run"]),
    "a word": (b"\nname\n", ["FILE:2: holds a text, not keys: write keys with values, such as name: my-run"]),
    "UTF-16": ("name: a\n".encode("utf-16"), ["FILE: is UTF-16: save it as UTF-8"]),
    "Latin-1": (b"name: a\n# Gr\xf6\xdfe\n", ["FILE:2: is not UTF-8 (byte 0xf6): save it as UTF-8"]),
    "binary": (b"\x7fELF\x00\x01", ["FILE: is not a text file: name a topology file"]),
    "huge": (b"#" * (2 << 20), ["FILE: is larger than 1 MiB: name a topology file"]),
    "aliases that expand to billions": (
        b"a: &a [x, x, x, x, x, x, x, x, x, x]\n"
        + b"".join(
            f"{n}: &{n} [{', '.join([f'*{m}'] * 10)}]\n".encode() for m, n in zip("abcdefg", "bcdefgh", strict=True)
        ),
        None,
    ),
}


@pytest.mark.parametrize("case", FILES)
def test_a_file_that_is_no_topology_is_refused_in_a_sentence(case: str, tmp_path: Path) -> None:
    content, expected = FILES[case]
    complaints = _complaints(tmp_path, content)
    assert complaints == expected or (expected is None and "expands without end" in complaints[0])


def test_a_missing_file_names_those_beside_it(tmp_path: Path) -> None:
    (tmp_path / "b.yaml").write_text(GOOD)
    with pytest.raises(TopologyError) as caught:
        load(tmp_path / "a.yaml")
    assert str(caught.value) == f"{tmp_path}/a.yaml: does not exist: {tmp_path} holds b.yaml"


def test_a_missing_file_in_a_place_without_topologies_is_just_missing(tmp_path: Path) -> None:
    with pytest.raises(TopologyError, match=r"a\.yaml: does not exist: check the path$"):
        load(tmp_path / "nowhere" / "a.yaml")


def test_a_directory_is_no_topology(tmp_path: Path) -> None:
    with pytest.raises(TopologyError, match=f"^{tmp_path}: is a directory: name a file in it$"):
        load(tmp_path)


def test_every_problem_of_a_file_is_reported_at_once_and_in_order(tmp_path: Path) -> None:
    text = GOOD.replace("seq_len: 512", "seq_len: long").replace("gpus: 0", "gpu: 0").replace("lr: 1e-3", "lr: 0")
    text = text.replace("ranks: {start: 2, max: 4}", "ranks: {start: 9, max: 5}").replace("max_steps: 60", "seed: 1")
    assert [line.split(" ")[:2] for line in _complaints(tmp_path, text.encode())] == [
        ["FILE:9:", "draft.train.lr"],
        ["FILE:12:", "data.seq_len"],
        ["FILE:15:", "nodes.shared.gpus"],
        ["FILE:15:", "nodes.shared.gpu"],
        ["FILE:20:", "trainers.ranks.start"],
        ["FILE:20:", "trainers.ranks.max"],
        ["FILE:23:", "run"],
    ]


def _complaints(directory: Path, content: bytes) -> list[str]:
    file = directory / "a.yaml"
    file.write_bytes(content)
    with pytest.raises(TopologyError) as caught:
        load(file)
    assert caught.value.exit_code == 2
    return str(caught.value).replace(str(file), "FILE").split("\n")
