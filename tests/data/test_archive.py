"""Hidden states on file: all there and made from the same, or refused."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dspark_train.data.archive import INFO, ArchiveInfo, check_archive, differences, present, write_info
from dspark_train.errors import DataError

WANTED = ArchiveInfo(
    target="target", layer_ids=(1, 2, 4), hidden_size=64, dtype="float32", fingerprint="f", seq_len=256
)
NUM_SAMPLES = 10


def run_of(max_failed_frac: float) -> Any:
    ledger, data = SimpleNamespace(max_failed_frac=max_failed_frac), SimpleNamespace(seq_len=256)
    topology = SimpleNamespace(ledger=ledger, data=data, target=SimpleNamespace(model="/models/target"))
    facts = SimpleNamespace(hidden_size=64)
    return SimpleNamespace(topology=topology, facts=facts, layer_ids=(1, 2, 4), hidden_dtype="float32")


class Rows:
    """A data set as far as it is looked at."""

    fingerprint = "f"

    def __len__(self) -> int:
        return NUM_SAMPLES


def check(directory: Path, max_failed_frac: float = 0.0) -> None:
    check_archive(directory, run_of(max_failed_frac), Rows())  # type: ignore[arg-type]


def fill(directory: Path, samples: range) -> None:
    directory.mkdir(exist_ok=True)
    for sample in samples:
        (directory / f"hs_{sample}.safetensors").touch()


def test_files_are_named_by_their_row_and_others_are_not_counted(tmp_path: Path) -> None:
    fill(tmp_path, range(3))
    for name in ("hs_x.safetensors", "hs_7.safetensors.lock", "hs_8.safetensors.1-2.partial", "ths_9.safetensors"):
        (tmp_path / name).touch()
    assert present(tmp_path) == {0, 1, 2}
    assert present(tmp_path / "none") == set()


def test_a_whole_directory_is_good_with_and_without_its_info(tmp_path: Path) -> None:
    fill(tmp_path, range(NUM_SAMPLES))
    check(tmp_path)
    write_info(tmp_path, WANTED)
    check(tmp_path)


def test_missing_samples_are_counted_named_and_allowed_as_far_as_samples_may_fail(tmp_path: Path) -> None:
    fill(tmp_path, range(1, NUM_SAMPLES))
    with pytest.raises(
        DataError, match=r"lacks the hidden states of 1 of 10 samples, the first of them 0: extract them"
    ):
        check(tmp_path)
    check(tmp_path, max_failed_frac=0.1)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"target": "other"}, "target is other, not target"),
        ({"layer_ids": (1, 3, 4)}, "layer_ids is (1, 3, 4), not (1, 2, 4)"),
        ({"hidden_size": 32}, "hidden_size is 32, not 64"),
        ({"dtype": "bfloat16"}, "dtype is bfloat16, not float32"),
        ({"fingerprint": "g"}, "the data set is another one"),
        ({"seq_len": 128}, "samples were cut to 128 tokens, not 256"),
        ({"seq_len": 512}, ""),
    ],
)
def test_what_was_made_otherwise_is_refused_with_the_reason(change: dict[str, Any], reason: str) -> None:
    assert "; ".join(differences(WANTED.model_copy(update=change), WANTED)) == reason


def test_a_broken_info_is_named(tmp_path: Path) -> None:
    fill(tmp_path, range(NUM_SAMPLES))
    (tmp_path / INFO).write_text("{")
    with pytest.raises(DataError, match=INFO):
        check(tmp_path)
