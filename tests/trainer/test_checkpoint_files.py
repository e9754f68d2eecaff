"""Checkpoints as files: what becomes durable, what is found, what is refused, what is never removed."""

import json
from pathlib import Path

from dspark_train.trainer.checkpoint_files import (
    Meta,
    find_best,
    find_latest,
    partial_dir,
    problems,
    prune,
    publish,
    remove_partial,
    step_dir,
)


def write(root: Path, step: int, contents: bytes = b"weights", accept_len: float | None = None) -> Path:
    partial = partial_dir(root, step)
    (partial / "shards").mkdir(parents=True)
    (partial / "shards" / "rank-0.distcp").write_bytes(contents)
    return publish(root, Meta(step, step + 2, 0, "digest", "replicate", 1, 1000.0, accept_len=accept_len))


def test_a_published_checkpoint_is_found_newest_first_and_named_by_latest(tmp_path):
    for step in (20, 60, 40):
        write(tmp_path, step)
    assert [found.step for found in find_latest(tmp_path)] == [60, 40, 20]
    assert (tmp_path / "latest").resolve() == step_dir(tmp_path, 40)
    assert find_latest(tmp_path)[0].meta().unit == 62


def test_nothing_is_found_where_there_is_no_directory(tmp_path):
    assert find_latest(tmp_path / "none") == []


def test_a_partial_checkpoint_is_never_found_and_can_be_swept(tmp_path):
    write(tmp_path, 20)
    partial_dir(tmp_path, 40).mkdir()
    assert [found.step for found in find_latest(tmp_path)] == [20]
    assert remove_partial(tmp_path) == ["step-00000040.partial"]
    assert not partial_dir(tmp_path, 40).exists()


def test_an_undamaged_checkpoint_has_no_problems(tmp_path):
    assert problems(write(tmp_path, 20)) == []


def test_a_cut_off_file_a_changed_byte_a_missing_file_and_a_broken_meta_are_each_named(tmp_path):
    cut, changed, missing, broken = (write(tmp_path, step) for step in (1, 2, 3, 4))
    (cut / "shards/rank-0.distcp").write_bytes(b"weigh")
    (changed / "shards/rank-0.distcp").write_bytes(b"weightz")
    (missing / "shards/rank-0.distcp").unlink()
    (broken / "meta.json").write_text('{"step": 4,')
    assert "5 bytes, not 7" in problems(cut)[0]
    assert "sha256 differs" in problems(changed)[0]
    assert "is missing" in problems(missing)[0]
    assert "meta.json" in problems(broken)[0]


def test_a_meta_of_an_unknown_format_or_without_files_is_refused(tmp_path):
    path = write(tmp_path, 20)
    meta = json.loads((path / "meta.json").read_text())
    (path / "meta.json").write_text(json.dumps(meta | {"format": 99}))
    assert "format 99" in problems(path)[0]
    (path / "meta.json").write_text(json.dumps(meta | {"files": {}}))
    assert "lists no files" in problems(path)[0]


def test_pruning_keeps_the_newest_and_never_counts_a_damaged_one_as_kept(tmp_path):
    for step in (10, 20, 30, 40):
        write(tmp_path, step)
    (step_dir(tmp_path, 40) / "shards/rank-0.distcp").write_bytes(b"")
    assert prune(tmp_path, 1) == [20, 10]
    assert [found.step for found in find_latest(tmp_path)] == [40, 30]


def test_the_best_validated_checkpoint_stays_whatever_its_age_until_a_better_one_comes(tmp_path):
    for step, accept_len in ((10, 2.5), (20, 2.0), (30, None), (40, 2.2)):
        write(tmp_path, step, accept_len=accept_len)
    assert prune(tmp_path, 1, keep_best=True) == [30, 20]
    assert find_best(tmp_path).step == 10
    write(tmp_path, 50, accept_len=2.5)
    assert prune(tmp_path, 1, keep_best=True) == [40, 10]  # of equals the newest is the best


def test_without_a_validation_there_is_no_best_and_a_damaged_one_is_not_it(tmp_path):
    write(tmp_path, 10)
    assert find_best(tmp_path) is None
    (write(tmp_path, 20, accept_len=9.0) / "shards/rank-0.distcp").write_bytes(b"")
    assert find_best(tmp_path) is None


def test_pruning_to_none_still_keeps_one(tmp_path):
    write(tmp_path, 10)
    assert prune(tmp_path, 0) == []


def test_a_sound_checkpoint_of_the_same_step_is_kept_and_a_damaged_one_replaced(tmp_path):
    write(tmp_path, 10, b"first")
    assert (write(tmp_path, 10, b"second") / "shards/rank-0.distcp").read_bytes() == b"first"
    (step_dir(tmp_path, 10) / "shards/rank-0.distcp").write_bytes(b"")
    assert (write(tmp_path, 10, b"third") / "shards/rank-0.distcp").read_bytes() == b"third"
    assert problems(step_dir(tmp_path, 10)) == []
