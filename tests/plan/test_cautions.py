"""What a plan says that it cannot know, and what may disappoint."""

from __future__ import annotations

import pytest

from dspark_train.plan.build import build_plan
from dspark_train.topology.facts import TargetFacts

from .conftest import TOPOLOGIES, Resolve

UNMEASURED = "nothing has been measured yet: throughput, bottleneck and link bandwidth are not predicted"


@pytest.mark.parametrize("name", sorted(file.stem for file in TOPOLOGIES.glob("*.yaml")))
def test_each_shipped_topology_plans(shipped: Resolve, name: str) -> None:
    plan = build_plan(shipped(name))
    assert plan.topology == name
    assert plan.warnings[-1] == UNMEASURED
    assert (plan.predicted.tokens_per_s, plan.predicted.bottleneck) == (None, None)


def test_the_quickstart_whose_target_is_there_has_nothing_else_to_say(shipped: Resolve) -> None:
    assert build_plan(shipped("quickstart")).warnings == (UNMEASURED,)


@pytest.mark.parametrize(
    ("name", "override", "expected"),
    [
        (
            "quickstart",
            "engines.vllm={max_num_batched_tokens: 256}",
            "engines.vllm.max_num_batched_tokens is 256: vLLM may prefill samples of 512 tokens in chunks, and some "
            "models' hidden states were reported to differ then; set it to 513 or more",
        ),
        (
            "qwen3-8b",
            "engines.vllm={}",
            "engines.vllm.max_num_batched_tokens is left to vLLM: vLLM may prefill samples of 8192 tokens in chunks, "
            "and some models' hidden states were reported to differ then; set it to 8193 or more",
        ),
        (
            "gb300-3node",
            "run.seed=1",
            "engines.count.max (8) is above the 1 that these 3 nodes hold: more needs more nodes",
        ),
        (
            "gb300-3node",
            "run.seed=1",
            "trainers.ranks.max (16) is above the 4 that these 3 nodes hold: more needs more nodes",
        ),
        (
            "gb300-3node",
            "run.seed=1",
            "the size of the target's weights is not known here, so not whether they fit: set target.shape.weight_gib",
        ),
        (
            "gb300-3node",
            "target.shape.weight_gib=600",
            "the target's weights take 75.0 GiB of each of an engine's 8 GPUs; their memory is not known",
        ),
        (
            "gb300-3node",
            "run.seed=1",
            "config.json of moonshotai/Kimi-K3 cannot be read here: its figures are target.shape's",
        ),
        (
            "gb300-3node",
            "store.segment_gib=200",
            "the 4 segments of one node take 800 GiB: more than half of a typical node's 1024 GiB",
        ),
        (
            "single-node",
            "trainers.ranks.max=8",
            "trainers.ranks.max (8) is above the 7 that these 1 nodes hold: more needs more nodes",
        ),
        (
            "single-node",
            "store.segment_gib=8",
            "scaled to 7 engines and 1 ranks, the store would have 8.00 GiB of the 12.50 GiB that it needs: raise "
            "trainers.ranks.min or store.segment_gib to scale that far",
        ),
    ],
)
def test_cautions(shipped: Resolve, name: str, override: str, expected: str) -> None:
    assert expected in build_plan(shipped(name, override)).warnings


@pytest.mark.parametrize("options", ["{max_num_batched_tokens: 16384}", "{enable_chunked_prefill: false}"])
def test_whole_prefills_are_not_cautioned_against(shipped: Resolve, options: str) -> None:
    plan = build_plan(shipped("qwen3-8b", f"engines.vllm={options}", facts=TargetFacts()))
    assert not any("in chunks" in text for text in plan.warnings)
