"""A plan's predictions: what the model says of its measured rates, or a caution that they are another topology's."""

from __future__ import annotations

from pathlib import Path

import pytest

from dspark_train.balance.forecast import with_forecast
from dspark_train.balance.model import Model, Rates
from dspark_train.balance.seen import Split
from dspark_train.cli.plan_text import forecast_lines
from dspark_train.plan.build import build_plan
from dspark_train.plan.cautions import UNMEASURED
from dspark_train.plan.spec import Plan
from dspark_train.topology.facts import TargetFacts
from dspark_train.topology.load import load
from dspark_train.topology.resolve import Resolved, resolve
from tests.plan.measured import profile

TOPOLOGIES = Path(__file__).parents[2] / "topologies"
REMEDY = "measure anew by `bench`"


def resolved(*overrides: str, name: str = "single-node") -> Resolved:
    return resolve(load(TOPOLOGIES / f"{name}.yaml", overrides), TargetFacts())


def forecast(of: Resolved, measured: Resolved | None = None, **changes: float) -> Plan:
    return with_forecast(build_plan(of), of, profile(measured or of, **changes), "a.profile.json", REMEDY)


def sizes(engines: int, ranks: int) -> tuple[str, ...]:
    return f"engines.count={{start: {engines}, max: 7}}", f"trainers.ranks={{start: {ranks}, max: 7}}"


@pytest.mark.parametrize(("engines", "ranks"), [(1, 1), (1, 7), (2, 6), (3, 5), (4, 4), (5, 3), (7, 1)])
@pytest.mark.parametrize("link", [None, 2e7])
def test_a_prediction_is_the_models(engines: int, ranks: int, link: float | None) -> None:
    of = resolved(*sizes(engines, ranks), "store.segment_gib=64")
    assert of.bytes_per_token is not None
    plan = forecast(
        of, engine_tokens_per_s=3000.0, rank_tokens_per_s=1000.0, **({"link_bytes_per_s": link} if link else {})
    )
    packs = of.topology.data.step_packs
    expected = min(engines * 3000, packs * 1000 / -(-packs // ranks), link / of.bytes_per_token if link else 1e12)
    model = Model(Rates((3000.0,), 1000.0, packs, link / of.bytes_per_token if link else 1e12))
    assert plan.predicted.tokens_per_s == pytest.approx(expected)
    assert plan.predicted.bottleneck == model.predict(Split(engines, ranks)).bottleneck
    assert plan.capacity.link_bytes_per_s_needed == pytest.approx(expected * of.bytes_per_token)
    assert UNMEASURED not in plan.warnings
    best = plan.best
    assert best is not None
    assert best.second is not None
    assert best.first.tokens_per_s >= max(plan.predicted.tokens_per_s or 0, best.second.tokens_per_s)
    assert best.lead_frac == pytest.approx(1 - best.second.tokens_per_s / best.first.tokens_per_s)


def test_all_that_launch_would_start_stays_as_it_was() -> None:
    of = resolved()
    plan, before = forecast(of), build_plan(of)
    assert (plan.processes, plan.nodes, plan.unresolved) == (before.processes, before.nodes, before.unresolved)
    assert plan.warnings == before.warnings[:-1]


def test_rates_of_another_topology_predict_nothing_and_one_caution_says_what_differs() -> None:
    of = resolved("data.seq_len=2048")
    plan = forecast(of, resolved())
    assert (plan.predicted.tokens_per_s, plan.best, plan.measured) == (None, None, None)
    assert plan.capacity == build_plan(of).capacity
    assert len(plan.warnings) == len(build_plan(of).warnings)
    assert plan.warnings[-1] == (
        "a.profile.json was measured with data.seq_len 4096, not 2048: throughput, bottleneck and link bandwidth are "
        "not predicted; measure anew by `bench`"
    )
    assert list(forecast_lines(plan)) == []
    two = forecast(resolved("data.seq_len=2048", "trainers.sharding=fsdp"), resolved())
    assert "data.seq_len 4096, not 2048 (and 1 field more): " in two.warnings[-1]


def test_without_the_targets_figures_no_bytes_are_predicted_and_tokens_are() -> None:
    known = resolved()
    unknown = resolved("target.shape={}")
    assert unknown.bytes_per_token is None
    plan = forecast(unknown, known, link_bytes_per_s=1.0)
    assert plan.predicted.tokens_per_s is not None
    assert plan.capacity.link_bytes_per_s_needed is None


def test_a_person_reads_the_forecast_in_three_lines() -> None:
    lines = list(forecast_lines(forecast(resolved(*sizes(4, 4), "store.segment_gib=64"), link_bytes_per_s=2.0**31)))
    assert lines == [
        "predicted: 4,000 tokens/s, ranks hold it up",
        "best split: 2 engines + 6 ranks, 5,333 tokens/s; the next, 4 engines + 4 ranks, is 25.0% worse",
        "from a.profile.json: one engine 3,000 tokens/s, one rank 1,000 (at 16 packs a step), the link 2.00 GiB/s; by "
        "bench pipeline (3 rounds), 2026-11-30T12:00:00+00:00, AMD EPYC (2 CPUs)",
    ]


def test_where_one_split_alone_is_legal_that_is_said() -> None:
    only = ("engines.count={start: 1, min: 1, max: 1}", "trainers.ranks={start: 2, min: 2, max: 2}")
    lines = list(forecast_lines(forecast(resolved(*only, name="quickstart"))))
    assert lines[1] == "best split: 1 engine + 2 ranks, 2,000 tokens/s; no other is legal"
