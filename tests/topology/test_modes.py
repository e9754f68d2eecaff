"""What of a topology's modes does not go together, and what the rest of the program makes of the others."""

from __future__ import annotations

from pathlib import Path

import pytest

from dspark_train.errors import TopologyError
from dspark_train.topology.facts import TargetFacts
from dspark_train.topology.load import load
from dspark_train.topology.resolve import resolve

QUICKSTART = Path(__file__).parents[2] / "topologies" / "quickstart.yaml"
DISK = ["store.protocol=disk", "store.path=scratch"]


@pytest.mark.parametrize(
    ("overrides", "mode"),
    [([], "online"), (DISK, "disk"), ([*DISK, "data.hidden_states=hidden"], "offline")],
)
def test_the_mode_follows_from_where_hidden_states_are(overrides: list[str], mode: str) -> None:
    assert resolve(load(QUICKSTART, overrides), TargetFacts()).mode == mode


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["store.protocol=disk"], "store.path is missing: name a directory that engines and ranks see"),
        (["store.path=x"], 'store.path ("x") has no effect with store.protocol tcp'),
        (["data.hidden_states=x"], 'data.hidden_states ("x") does not go with store.protocol tcp'),
        ([*DISK, "store.device=mlx5_0"], 'store.device ("mlx5_0") has no effect with store.protocol disk'),
        (["draft={algorithm: mtp}"], "target.layers ([2, 15, 27]) is not read by mtp: write []"),
        (
            ["draft={algorithm: mtp, train: {draft_attn_impl: sdpa}}", "target.layers=[]"],
            "takes the target's own layers",
        ),
        (["draft={algorithm: dflash2, train: {draft_vocab_size: 100}}"], "does not go with dflash2"),
        (["draft={algorithm: eagle3, train: {draft_attn_impl: simple_flex_attention}}"], "does not run on CPU"),
    ],
)
def test_what_does_not_go_together_is_refused(overrides: list[str], expected: str) -> None:
    with pytest.raises(TopologyError) as caught:
        load(QUICKSTART, overrides)
    assert expected in str(caught.value)
