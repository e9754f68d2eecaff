"""Measured rates: for which topology they hold, and what a file of them may not be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dspark_train.errors import ProfileError
from dspark_train.plan.profile import differences, parse, profile_path, subject_of

from .conftest import SMOL, Resolve
from .measured import profile


def made(resolve: Resolve) -> dict[str, Any]:
    tree: dict[str, Any] = json.loads(profile(resolve("quickstart")).model_dump_json())
    return tree


@pytest.mark.parametrize(
    "override",
    [
        "name=other",
        "sets=2",
        "data.path=elsewhere",
        "data.step_packs=4",
        "draft.train.lr=0.5",
        "engines.count={start: 2, max: 4}",
        "trainers.ranks={start: 1, max: 1}",
        "store.segment_gib=9",
        "run.seed=1",
        "balance.mode=advise",
        "engines.env={MY_TOKEN: secret}",
    ],
)
def test_what_no_rate_depends_on_may_differ(shipped: Resolve, override: str) -> None:
    before, after = subject_of(shipped("quickstart")), subject_of(shipped("quickstart", override))
    assert list(differences(before, after)) == []
    assert "secret" not in json.dumps(after)


@pytest.mark.parametrize(
    ("override", "difference"),
    [
        ("target.model=other/target", "target.model {own}, not other/target"),
        ("target.layers=[1, 2, 3]", "target.layers {own}, not [1, 2, 3]"),
        ("target.dtype=bfloat16", "target.dtype float32, not bfloat16"),
        ("draft.algorithm=dflash", "draft.algorithm dspark, not dflash"),
        ("draft.train.num_layers=7", "draft.train.num_layers {own}, not 7"),
        ("draft.train.max_anchors=7", "draft.train.max_anchors {own}, not 7"),
        ("data.seq_len=256", "data.seq_len 512, not 256"),
        ("engines.entry=dspark_train.engine.stand_in", "engines.entry {own}, not dspark_train.engine.stand_in"),
        ("engines.vllm={max_num_seqs: 7}", "engines.vllm.max_num_seqs left out, not 7"),
        ("engines.env.DSPARK_STAND_IN_TOKENS_PER_S='5'", "engines.env.DSPARK_STAND_IN_TOKENS_PER_S left out, not 5"),
        ("trainers.cpu_threads=7", "trainers.cpu_threads {own}, not 7"),
        ("trainers.sharding=fsdp", "trainers.sharding replicate, not fsdp"),
        ("trainers.min_step_s=7", "trainers.min_step_s {own}, not 7.0"),
        ("store.protocol=rdma", "store.protocol tcp, not rdma"),
    ],
)
def test_a_field_that_a_rate_depends_on_is_named_with_both_values(
    shipped: Resolve, override: str, difference: str
) -> None:
    measured = subject_of(shipped("quickstart"))
    own = measured.get(difference.split()[0])
    shown = own if isinstance(own, str) else json.dumps(own)
    if own is None:
        shown = "left out"
    assert difference.format(own=shown) in list(differences(measured, subject_of(shipped("quickstart", override))))


def test_a_node_with_gpus_is_another_device(shipped: Resolve) -> None:
    found = list(differences(subject_of(shipped("quickstart")), subject_of(shipped("single-node"))))
    assert "device cpu, not cuda" in found


def test_a_target_in_a_directory_is_known_by_its_weights_wherever_it_lies(shipped: Resolve) -> None:
    facts = SMOL.model_copy(update={"identity": "aa11"})
    here = subject_of(shipped("quickstart", "target.model=/models/a", facts=facts))
    there = subject_of(shipped("quickstart", "target.model=/models/b", facts=facts))
    other = facts.model_copy(update={"identity": "bb22"})
    assert list(differences(here, there)) == []
    retrained = subject_of(shipped("quickstart", "target.model=/models/a", facts=other))
    assert list(differences(here, retrained)) == ["target.model aa11, not bb22"]


def test_a_target_of_a_hub_is_known_by_its_name_where_its_files_are_not_there(shipped: Resolve) -> None:
    from dspark_train.topology.facts import TargetFacts

    name = "target.model=HuggingFaceTB/SmolLM2-135M-Instruct"
    facts = SMOL.model_copy(update={"identity": "aa11"})
    measured = subject_of(shipped("quickstart", name, facts=facts))
    unknown = subject_of(shipped("quickstart", name, "target.shape={}", facts=TargetFacts()))
    assert unknown["bytes_per_token"] is None
    assert list(differences(measured, unknown)) == []


def test_a_profile_comes_back_as_it_was_written(shipped: Resolve) -> None:
    before = profile(shipped("quickstart"), link_bytes_per_s=1e9)
    assert parse(before.model_dump_json(), "a.profile.json", "measure anew") == before
    assert profile_path(Path("x/a.b.yaml")) == Path("x/a.b.profile.json")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"rank_tokens_per_s": ...}, "rank_tokens_per_s is missing"),
        ({"engine_tokens_per_s": "fast"}, 'engine_tokens_per_s is "fast" (input should be a valid number)'),
        ({"engine_tokens_per_s": 0}, "engine_tokens_per_s is 0 (input should be greater than 0)"),
        ({"rank_packs": 1.5}, "rank_packs is 1.5 (input should be a valid integer"),
        ({"link_bytes_per_s": -1}, "link_bytes_per_s is -1 (input should be greater than 0)"),
        ({"version": 2}, "version is 2 (input should be 1)"),
        ({"speed": 1}, "speed is not a known key"),
        ({"measured_at": "yesterday"}, 'measured_at is "yesterday" (input should be a valid datetime'),
        ({"measured_at": "2026-11-30T12:00:00"}, "measured_at is"),
        ({"subject": []}, "subject is [] (input should be an object)"),
        ({"host": {"cpu": "x"}}, "host.num_cpus is missing"),
        ({"host": {"cpu": "x", "num_cpus": 1, "gpus": [1]}}, "host.gpus[0] is 1"),
    ],
)
def test_a_broken_profile_is_one_problem_with_file_key_and_remedy(
    shipped: Resolve, change: dict[str, Any], said: str
) -> None:
    text = json.dumps({key: value for key, value in {**made(shipped), **change}.items() if value is not ...})
    with pytest.raises(ProfileError) as caught:
        parse(text, "a.profile.json", "measure anew")
    assert caught.value.exit_code == 2
    assert str(caught.value).startswith(f"a.profile.json: {said}")
    assert str(caught.value).endswith(": measure anew")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "a.profile.json:1: is not JSON"),
        ('{\n"version": 1,\n', "a.profile.json:3: is not JSON"),
        ("[1]", "a.profile.json: holds no object"),
        ('{"engine_tokens_per_s": NaN}', "a.profile.json: version is missing"),
        ("[" * 100_000, "a.profile.json: is nested too deeply"),
    ],
)
def test_what_is_no_profile_at_all_is_said_so(text: str, said: str) -> None:
    with pytest.raises(ProfileError) as caught:
        parse(text, "a.profile.json", "measure anew")
    assert str(caught.value).startswith(said)
