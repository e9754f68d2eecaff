"""Every algorithm that speculators trains from hidden states: trained by ranks, exported, loaded, gone on from."""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from speculators.train.data import CollateFn

from dspark_train.errors import StartError
from dspark_train.schedule.unit import Piece
from dspark_train.topology.resolve import Resolved
from dspark_train.trainer.drafts import build_draft, load_export
from dspark_train.trainer.export import export_checkpoint
from dspark_train.trainer.packs import loss_mask_row, pack_batch, padding, preprocessed
from dspark_train.trainer.process_group import dissolve
from dspark_train.trainer.ring import PackShape
from tests.trainer import recorded
from tests.trainer.recorded import HIDDEN, SEQ_LEN, Hub, Join, make_run, schedule_of
from tests.trainer.seat import Seat

pytestmark = pytest.mark.torch
REDUCED = {"num_layers": 1, "draft_vocab_size": 128, "lr": 1e-3, "optimizer": "adamw"}
TRAIN: dict[str, dict[str, Any]] = {
    "dspark": {**REDUCED, "block_size": 4, "max_anchors": 12, "markov_rank": 16},
    "dflash": {**REDUCED, "block_size": 4, "max_anchors": 12},
    "dflash2": {"num_layers": 1, "lr": 1e-3, "block_size": 4, "max_anchors": 12, "selector_rank": 8}
    | {"selector_top_k": 4, "optimizer": "adamw"},
    "eagle3": {**REDUCED, "ttt_steps": 3},
    "peagle": {**REDUCED, "num_depths": 4, "max_anchors": 12},
    "mtp": {"num_speculative_steps": 3, "lr": 1e-3, "optimizer": "adamw"},
}
PREPROCESSED = ("eagle3", "peagle")
"""Their packs are copies, unlike those of dspark, with which everything else is tested."""
NUM_PROPOSALS = {"dspark": 4, "dflash": 3, "dflash2": 3, "eagle3": 3, "peagle": 4, "mtp": 3}
"""DSpark's blocks begin at the anchor, DFlash's after it."""
STEPS = {"run": {"max_steps": 2}, "validation": {"every_steps": 2}, "checkpoint": {"every_steps": 2}}
DEADLINE_S, QUICK_S = 240.0, 10.0


@dataclass(frozen=True)
class Bench:
    """Makes runs of any algorithm."""

    target: Path
    mtp_target: Path
    data: Path

    def changes(self, algorithm: str, **train: Any) -> dict[str, Any]:
        """Sections of the topology of a run of this algorithm."""
        draft = {"algorithm": algorithm, "train": train or TRAIN[algorithm]}
        layers = {"target": {"layers": []}} if algorithm == "mtp" else {}
        return {**STEPS, **layers, "draft": draft}

    def target_of(self, algorithm: str) -> Path:
        return self.mtp_target if algorithm == "mtp" else self.target

    def resolved(self, algorithm: str, **train: Any) -> Resolved:
        return recorded.resolved_run(self.target_of(algorithm), self.data, **self.changes(algorithm, **train))

    def trained(self, root: Path, algorithm: str, **train: Any) -> Hub:
        """Train a run in ``root`` to its end, by one rank in this process."""
        self.planned(root, algorithm, **train)
        seat = Seat(root)
        seat.start()
        seat.join()
        deadline_s = time.monotonic() + DEADLINE_S
        while seat.status()["state"] == "training":
            assert time.monotonic() < deadline_s, seat.status()
            time.sleep(0.05)
        assert seat.status()["state"] == "done", seat.status()
        seat.rank.stop(QUICK_S)
        dissolve()
        return seat.hub

    def planned(self, root: Path, algorithm: str, **train: Any) -> Path:
        """A run directory."""
        return make_run(root, self.target_of(algorithm), self.data, **self.changes(algorithm, **train))


@pytest.fixture(scope="module")
def bench(tiny_target: Path, recorded_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Bench:
    directory = tmp_path_factory.mktemp("mtp-target")
    save_mtp_target(directory, tiny_target)
    return Bench(tiny_target, directory, recorded_data)


def save_mtp_target(directory: Path, tokenizer: Path) -> None:
    """A random Qwen3 of 4 layers with a head for more tokens, under the names that published targets give it."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    shutil.copytree(tokenizer, directory, dirs_exist_ok=True)
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=512,
        hidden_size=HIDDEN,
        intermediate_size=128,
        num_hidden_layers=4,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        max_position_embeddings=2048,
    )
    Qwen3ForCausalLM(config).save_pretrained(directory)
    weights = load_file(directory / "model.safetensors")
    head = {name.replace("model.layers.0.", "mtp.layers.0."): w for name, w in weights.items() if "layers.0." in name}
    ones = ("mtp.norm", "mtp.pre_fc_norm_hidden", "mtp.pre_fc_norm_embedding")
    head |= {f"{name}.weight": torch.ones(HIDDEN) for name in ones}
    head["mtp.fc.weight"] = 0.05 * torch.randn(HIDDEN, 2 * HIDDEN)
    save_file({k: v.clone() for k, v in (weights | head).items()}, directory / "model.safetensors", {"format": "pt"})


@pytest.fixture(scope="module")
def runs(bench: Bench, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A run of each algorithm, made when asked for."""
    made: dict[str, tuple[Path, Hub]] = {}

    def run(algorithm: str) -> tuple[Path, Hub]:
        if algorithm not in made:
            root = tmp_path_factory.mktemp("runs") / algorithm
            made[algorithm] = root, bench.trained(root, algorithm)
        return made[algorithm]

    return run


def samples(num_layers: int) -> list[dict[str, torch.Tensor]]:
    """Three samples as speculators' data set gives them."""
    made = []
    for number, length in enumerate((30, 41, 9)):
        states = torch.from_numpy(recorded.hidden_states(number, length))[:, -num_layers:]
        made.append(
            {
                "hidden_states": states[:, :-1].flatten(1),
                "verifier_last_hidden_states": states[:, -1],
                "input_ids": torch.arange(4, 4 + length),
                "loss_mask": (torch.arange(length) > length // 3).long(),
                "lengths": torch.tensor([length]),
                "position_ids": torch.arange(length),
            }
        )
    return made


@pytest.mark.parametrize("algorithm", TRAIN)
def test_a_pack_gives_the_loss_that_speculators_own_batch_gives(bench: Bench, algorithm: str) -> None:
    resolved = bench.resolved(algorithm)
    draft, num_layers = build_draft(resolved, bench.data), resolved.num_layers_stored
    hidden, ids = torch.zeros(SEQ_LEN, num_layers, HIDDEN), torch.zeros(SEQ_LEN, dtype=torch.int64)
    pieces, masks, row = [], [], 0
    for number, sample in enumerate(samples(num_layers)):
        length = int(sample["lengths"])
        rows = slice(row, row + length)
        states = sample["hidden_states"].view(length, num_layers - 1, HIDDEN)
        hidden[rows] = torch.cat([states, sample["verifier_last_hidden_states"].unsqueeze(1)], 1)
        ids[rows] = sample["input_ids"]
        pieces.append(Piece(number, row, length))
        masks.append(sample["loss_mask"].numpy())
        row += length
    ours = pack_batch(hidden, ids, loss_mask_row(pieces, masks, frozenset(), SEQ_LEN))
    if draft.preprocess is not None:
        ours = preprocessed(draft, ours, pieces, frozenset())
    collated = CollateFn(SEQ_LEN, HIDDEN, max(num_layers - 1, 1), torch.float32, draft.preprocess)(samples(num_layers))
    theirs = {name: value for name, value in collated.items() if isinstance(value, torch.Tensor)}
    losses = []
    for batch in (ours, theirs):
        torch.manual_seed(11)
        losses.append(draft.model(**batch, **draft.train_kwargs)[1].item())
    assert losses[0] > 0
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


@pytest.mark.parametrize("algorithm", TRAIN)
def test_a_pack_of_padding_gives_finite_gradients(bench: Bench, algorithm: str) -> None:
    resolved = bench.resolved(algorithm)
    draft = build_draft(resolved, bench.data)
    shape = PackShape(SEQ_LEN, resolved.num_layers_stored, HIDDEN, torch.float32)
    _, loss, _ = draft.model(**padding(draft, shape, torch.device("cpu")), **draft.train_kwargs)
    (loss * 0.0).backward()
    assert torch.isfinite(loss)
    assert all(torch.isfinite(w.grad).all() for w in draft.model.parameters() if w.grad is not None)


@pytest.mark.parametrize("algorithm", TRAIN)
def test_a_run_trains_it_and_tells_its_figures(runs: Any, algorithm: str) -> None:
    _, hub = runs(algorithm)
    assert [metrics["step"] for metrics in hub.of("train")] == [1, 2]
    assert [metrics["step"] for metrics in hub.of("validate")] == [0, 2]
    for metrics in (*hub.of("train"), *hub.of("validate")):
        assert metrics["loss"] > 0
        assert 1 <= metrics["accept_len"] <= 1 + NUM_PROPOSALS[algorithm]


@pytest.mark.parametrize("algorithm", PREPROCESSED)
def test_two_ranks_train_the_same_steps(bench: Bench, runs: Any, algorithm: str, tmp_path: Path) -> None:
    _, hub = runs(algorithm)
    root = bench.planned(tmp_path / "two", algorithm)
    shared = Hub(schedule_of(root))
    outcomes = recorded.train(root, shared, [Join(2)])
    assert {outcome.state for outcome in outcomes} == {"done"}, outcomes
    for kind in ("train", "validate"):
        losses = [metrics["loss"] for metrics in shared.of(kind)]
        assert losses == pytest.approx([metrics["loss"] for metrics in hub.of(kind)], rel=1e-6)


@pytest.mark.parametrize("algorithm", TRAIN)
def test_its_export_loads_back_and_says_how_many_tokens_it_proposes(runs: Any, algorithm: str, tmp_path: Path) -> None:
    root, _ = runs(algorithm)
    resolved = Resolved.model_validate_json((root / "resolved.json").read_text())
    exported = export_checkpoint(resolved, root / "checkpoints", tmp_path / "draft")
    assert (exported.algorithm, exported.step) == (algorithm, 2)
    assert exported.num_speculative_tokens == NUM_PROPOSALS[algorithm]
    assert type(load_export(tmp_path / "draft")).__name__.lower() == f"{algorithm}draftmodel"


# Those whose loss draws no anchors: the others' validation at step 0 is on other ones than at step 2.
@pytest.mark.parametrize("algorithm", ["eagle3", "mtp"])
def test_a_run_goes_on_from_a_published_draft_where_that_one_ended(
    bench: Bench, runs: Any, algorithm: str, tmp_path: Path
) -> None:
    root, hub = runs(algorithm)
    resolved = Resolved.model_validate_json((root / "resolved.json").read_text())
    export_checkpoint(resolved, root / "checkpoints", tmp_path / "draft")
    tuned = bench.trained(tmp_path / "tuned", algorithm, from_pretrained=str(tmp_path / "draft"), lr=1e-3)
    assert tuned.of("validate")[0]["loss"] == pytest.approx(hub.of("validate")[-1]["loss"], rel=1e-6)
    assert tuned.of("validate")[-1]["loss"] != pytest.approx(hub.of("validate")[-1]["loss"], rel=1e-6)


def test_a_published_draft_of_another_kind_or_other_layers_is_refused(bench: Bench, runs: Any, tmp_path: Path) -> None:
    root, _ = runs("eagle3")
    resolved = Resolved.model_validate_json((root / "resolved.json").read_text())
    published = str(tmp_path / "draft")
    export_checkpoint(resolved, root / "checkpoints", tmp_path / "draft")
    with pytest.raises(StartError, match="is a eagle3 draft, not dflash"):
        build_draft(bench.resolved("dflash", from_pretrained=published), bench.data)
    changes = bench.changes("eagle3", from_pretrained=published) | {"target": {"layers": [1, 3]}}
    other = recorded.resolved_run(bench.target, bench.data, **changes)
    with pytest.raises(StartError, match=r"reads layers 1, 2, and target.layers is 1, 3"):
        build_draft(other, bench.data)


def test_a_config_without_weights_gives_a_fresh_draft_of_its_shape(bench: Bench, runs: Any, tmp_path: Path) -> None:
    root, _ = runs("dflash")
    resolved = Resolved.model_validate_json((root / "resolved.json").read_text())
    export_checkpoint(resolved, root / "checkpoints", tmp_path / "draft")
    (tmp_path / "draft" / "model.safetensors").unlink()
    fresh = build_draft(bench.resolved("dflash", from_pretrained=str(tmp_path / "draft")), bench.data).model
    like = build_draft(bench.resolved("dflash"), bench.data).model
    assert {n: w.shape for n, w in fresh.named_parameters()} == {n: w.shape for n, w in like.named_parameters()}
    assert torch.equal(fresh.d2t, like.d2t)
