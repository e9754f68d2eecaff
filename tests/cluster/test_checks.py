"""What `doctor` finds, and how it is ordered."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from dspark_train.cluster import machine_checks, need_checks, software_checks
from dspark_train.cluster.checks import GIB, Check, Need, Outcome, run_checks
from dspark_train.plan.build import build_plan
from dspark_train.topology.facts import TargetFacts
from dspark_train.topology.load import load
from dspark_train.topology.resolve import resolve

QUICKSTART = Path(__file__).parents[2] / "topologies" / "quickstart.yaml"


@pytest.fixture
def need(tmp_path: Path) -> Need:
    return Need(runs_dir=tmp_path / "not" / "yet")


def program(directory: Path, name: str, text: str) -> None:
    """A program of that name that prints ``text``."""
    path = directory / name
    path.write_text(f"#!{sys.executable}\nprint({text!r})\n")
    path.chmod(0o755)


def test_findings_come_worst_first_and_name_a_remedy_only_where_one_is_needed(need: Need) -> None:
    def broken(need: Need) -> Outcome:
        raise OSError("disk on fire")

    checks = [
        Check("fine", lambda need: Outcome("ok", "all right"), "never shown"),
        Check("so-so", lambda need: Outcome("warning", "hm"), "mend it"),
        Check("special", lambda need: Outcome("failed", "bad", "mend it so"), "mend it"),
        Check("broken", broken, "look there"),
    ]
    shown = [(f.check, f.status, f.text, f.remedy) for f in run_checks(checks, need)]
    assert shown == [
        ("special", "failed", "bad", "mend it so"),
        ("broken", "failed", "the check itself failed: OSError: disk on fire", "look there"),
        ("so-so", "warning", "hm", "mend it"),
        ("fine", "ok", "all right", ""),
    ]


@pytest.mark.parametrize(
    ("pin", "problem"),
    [
        ("pytest>=1", ""),
        ("pytest", ""),
        ("pytest<1", "pytest is .*, <1 is needed"),
        ("no-such-package==3", r"no-such-package is missing \(==3 is needed\)"),
        ("no-such-package", r"no-such-package is missing \(any version is needed\)"),
    ],
)
def test_a_version_that_is_not_as_pinned_is_named(pin: str, problem: str) -> None:
    import re

    assert re.fullmatch(problem, software_checks.version_problem(Requirement(pin)))


def test_missing_shared_libraries_are_named_with_what_brings_them(
    tmp_path: Path, need: Need, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = "\tlibc.so.6 => /lib/libc.so.6 (0x1)\n\tlibibverbs.so.1 => not found\n\tlibcurl.so.4 => not found"
    program(tmp_path, "ldd", lines)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(software_checks, "mooncake_master", lambda: tmp_path / "mooncake_master")
    outcome = software_checks.check_mooncake_master(need)
    assert outcome == Outcome("failed", "mooncake_master cannot start without libibverbs.so.1, libcurl.so.4")
    (check,) = [check for check in software_checks.SOFTWARE_CHECKS if check.name == "mooncake"]
    assert "apt-get install libibverbs1" in check.remedy


def test_what_does_not_load_shows_its_last_line() -> None:
    outcome = software_checks.loads("it", "raise RuntimeError('operator torchvision::nms does not exist')")
    assert outcome.status == "failed"
    assert outcome.text == "it does not load: RuntimeError: operator torchvision::nms does not exist"
    assert software_checks.loads("it", "print('noise'); print('1.2')") == Outcome("ok", "it 1.2 loads")


def test_memory_that_is_not_there_fails(tmp_path: Path) -> None:
    assert machine_checks.check_memory(Need(tmp_path, memory_bytes=1)).status == "ok"
    outcome = machine_checks.check_memory(Need(tmp_path, memory_bytes=2**60))
    assert outcome.status == "failed"
    assert f"about {2**60 / GIB:.1f} GiB needed" in outcome.text


def test_the_disk_of_runs_that_do_not_exist_yet_is_their_nearest_parents(need: Need, tmp_path: Path) -> None:
    assert machine_checks.check_disk(need).status in ("ok", "warning")
    assert machine_checks.check_disk(Need(tmp_path, disk_bytes=2**60)).status == "failed"


def test_missing_gpus_fail_only_where_the_topology_needs_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert machine_checks.check_gpus(Need(tmp_path)).status == "ok"
    assert machine_checks.check_gpus(Need(tmp_path, num_gpus=1)).status == "failed"
    program(tmp_path, "nvidia-smi", "NVIDIA H200, 143771 MiB, 580.1\nNVIDIA H200, 143771 MiB, 580.1")
    assert machine_checks.check_gpus(Need(tmp_path, num_gpus=2)).status == "ok"
    assert machine_checks.check_gpus(Need(tmp_path, num_gpus=4)).text.endswith("the topology needs 4 on a node")


def test_ports_clock_and_limits_of_this_machine_are_looked_at(need: Need) -> None:
    checks = [check for check in machine_checks.MACHINE_CHECKS if check.name in ("ports", "clock", "open files")]
    assert all(finding.status in ("ok", "warning") for finding in run_checks(checks, need))


def test_a_topology_needs_its_segments_in_memory_and_its_inputs_on_disk(tmp_path: Path) -> None:
    def needed(segment_gib: int) -> Need:
        topology = load(QUICKSTART, (f"store.segment_gib={segment_gib}", f"data.path={tmp_path / 'none'}"))
        facts = TargetFacts(num_layers=30, hidden_size=576, vocab_size=49152, weight_bytes=269_000_000)
        resolved = resolve(topology, facts)
        return need_checks.need_of(resolved, build_plan(resolved), tmp_path)

    small, large = needed(4), needed(5)
    num_ranks = load(QUICKSTART, ()).trainers.ranks.start
    assert small.memory_bytes is not None
    assert large.memory_bytes == small.memory_bytes + num_ranks * GIB
    # At least the segments, the target in fp32, and its KV cache.
    assert small.memory_bytes > num_ranks * 4 * GIB + 2 * 269_000_000 + GIB
    outcome = need_checks.check_dataset(small)
    assert (outcome.status, outcome.remedy) == ("failed", "make it: dspark-train prepare --topology FILE")
    assert need_checks.check_target(small).status == "ok"
    assert need_checks.check_nodes(small).status == "ok"
