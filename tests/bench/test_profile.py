"""Measured rates, kept for `plan`: those of `bench pipeline`, and those that a run's balance saw."""

import json
from pathlib import Path

import pytest

from dspark_train.balance.decide import decide
from dspark_train.balance.decision import State
from dspark_train.balance.replay import BEGAN, SEEN, began, recorded
from dspark_train.balance.rule import Settings
from dspark_train.bench import profile
from dspark_train.cli import bench
from dspark_train.cli.app import run
from dspark_train.cli.plan import resolve_file
from dspark_train.errors import UsageError
from dspark_train.plan.profile import Profile, subject_of
from tests.balance.looks import Run, Split

TOPOLOGY = Path(__file__).parents[2] / "topologies" / "single-node.yaml"
FIGURES = {
    "engine_alone_tokens_per_s": 3000.0,
    "trainer_alone_tokens_per_s": 1000.0,
    "run_tokens_per_s": 990.0,
    "efficiency": 0.99,
    "rounds": [{}, {}, {}],
}


@pytest.fixture
def topology(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(TOPOLOGY.read_text())
    return path


def kept(topology: Path) -> Profile:
    return Profile.model_validate_json(topology.with_suffix(".profile.json").read_text())


def test_bench_pipeline_keeps_its_medians_beside_the_topology(topology, monkeypatch, capsys):
    monkeypatch.setattr(bench, "_measure", lambda *_: FIGURES)
    assert run(["bench", "pipeline", "--topology", str(topology), "--set", "data.seq_len=2048", "--json"]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out) == FIGURES
    assert said.err == f"rates for `plan`: {topology.with_suffix('.profile.json')}\n"
    made = kept(topology)
    assert (made.engine_tokens_per_s, made.rank_tokens_per_s, made.rank_packs) == (3000.0, 1000.0, 16)
    assert (made.measured_by, made.link_bytes_per_s) == ("bench pipeline (3 rounds)", None)
    assert made.subject == subject_of(resolve_file(topology, ("data.seq_len=2048",)))
    assert made.host.num_cpus >= 1
    assert "dspark-train" in made.host.versions
    assert run(["plan", "--topology", str(topology), "--set", "data.seq_len=2048", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["predicted"] == {"tokens_per_s": 4000.0, "bottleneck": "trainers"}
    assert sorted(path.name for path in topology.parent.iterdir()) == ["mine.profile.json", "mine.yaml"]


def test_it_keeps_nothing_where_it_is_told_so_or_measures_something_else(topology, monkeypatch, capsys):
    monkeypatch.setattr(bench, "_measure", lambda *_: FIGURES)
    assert run(["bench", "pipeline", "--topology", str(topology), "--no-save"]) == 0
    assert run(["bench", "peer", "--topology", str(topology)]) == 0
    assert "rates" not in capsys.readouterr().err
    assert [path.name for path in topology.parent.iterdir()] == ["mine.yaml"]


def test_figures_are_shown_even_where_they_cannot_be_kept(topology, monkeypatch, capsys):
    monkeypatch.setattr(bench, "_measure", lambda *_: FIGURES)
    topology.with_suffix(".profile.json").mkdir()
    assert run(["bench", "pipeline", "--topology", str(topology), "--json"]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out) == FIGURES
    assert said.err.startswith(f"warning: {topology.with_suffix('.profile.json')} was not written: ")


def journal(resolved, num: int = 6) -> list[str]:
    """Of a run with 4 engines of 10 tokens/s and 4 ranks of 5."""
    settings, state = Settings.of(resolved), State()
    lines = [{"at": "2026-11-30T05:00:00.000Z", "kind": BEGAN, **began(settings, state)}]
    played = Run(Split(4, 4), engine=10.0, rank=5.0, step_packs=resolved.topology.data.step_packs)
    for number in range(num):
        seen = played.look()
        state, decision = decide(settings, state, seen)
        lines += [{"at": f"2026-11-30T05:0{number}:30.000Z", "kind": SEEN, **recorded(seen, decision)}]
        lines += [{"at": "2026-11-30T05:09:00.000Z", "kind": "rank.ready", "text": "balance"}]
    return [json.dumps(line) for line in lines]


def test_a_run_gives_the_last_rates_that_its_balance_knew(topology, tmp_path, capsys):
    resolved = resolve_file(topology, ())
    root = tmp_path / "a1"
    root.mkdir()
    (root / "resolved.json").write_text(resolved.model_dump_json())
    (root / "events.jsonl").write_text("\n".join(journal(resolved)) + "\n")
    assert run(["bench", "profile", str(root), "--topology", str(topology)]) == 0
    assert capsys.readouterr().out == f"run a1: its rates are in {topology.with_suffix('.profile.json')}\n"
    made = kept(topology)
    assert made.engine_tokens_per_s == pytest.approx(10.0)
    assert made.rank_tokens_per_s == pytest.approx(5.0)
    assert (made.rank_packs, made.measured_by) == (4, "run a1")
    assert made.measured_at.isoformat() == "2026-11-30T05:05:30+00:00"
    assert run(["bench", "profile", str(root)]) == 2
    assert "bench profile needs --topology: it keeps the rates beside it" in capsys.readouterr().err


def test_a_run_whose_balance_saw_nothing_gives_none(topology):
    resolved = resolve_file(topology, ())
    for lines in ([], journal(resolved, 1)):
        with pytest.raises(UsageError, match="the balance of run a1 knows no rates: it must watch"):
            profile.of_run("a1", lines, resolved)
