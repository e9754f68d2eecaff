"""A plan with what its topology's measured rates predict: throughput, bottleneck, and the best legal split. Pure."""

from __future__ import annotations

from math import inf

from dspark_train.balance.layout import Layout
from dspark_train.balance.model import Best, Model, Prediction, Rates
from dspark_train.balance.seen import Split
from dspark_train.plan.cautions import UNMEASURED
from dspark_train.plan.profile import Profile, differences, subject_of
from dspark_train.plan.spec import BestSplit, Measured, Plan, Predicted, PredictedSplit
from dspark_train.topology.resolve import Resolved


def with_forecast(plan: Plan, resolved: Resolved, profile: Profile, file: str, remedy: str) -> Plan:
    """``plan`` with its predictions; where the rates are those of another subject, with a caution that says of which.

    file: where the profile was read; remedy: how to measure anew.
    """
    others = list(differences(profile.subject, subject_of(resolved)))
    if others:
        text = (
            f"{file} was measured with {others[0]}{_more(len(others) - 1)}: throughput, bottleneck and link bandwidth "
            f"are not predicted; {remedy}"
        )
        return plan.model_copy(update={"warnings": _without(plan, text)})
    count, ranks = resolved.topology.engines.count, resolved.topology.trainers.ranks
    model, start = model_of(profile, resolved), Split(count.start, ranks.start)
    now, best = model.predict(start), model.best(Layout.of(resolved), start)
    needed = resolved.bytes_per_token and now.tokens_per_s * resolved.bytes_per_token
    return plan.model_copy(
        update={
            "predicted": Predicted(tokens_per_s=now.tokens_per_s, bottleneck=now.bottleneck),
            "best": None if best is None else _best(best),
            "measured": _measured(profile, file),
            "capacity": plan.capacity.model_copy(update={"link_bytes_per_s_needed": needed}),
            "warnings": _without(plan),
        }
    )


def model_of(profile: Profile, resolved: Resolved) -> Model:
    """Predictions for this topology from the measured rates."""
    carried = profile.link_bytes_per_s
    link = carried / resolved.bytes_per_token if carried and resolved.bytes_per_token else inf
    packs = resolved.topology.data.step_packs
    return Model(Rates((profile.engine_tokens_per_s,), profile.rank_tokens_per_s, packs, link))


def _without(plan: Plan, *instead: str) -> tuple[str, ...]:
    """The warnings, but that nothing was measured."""
    return (*(text for text in plan.warnings if text != UNMEASURED), *instead)


def _more(num: int) -> str:
    return f" (and {num} field{'s'[: num > 1]} more)" if num else ""


def _measured(profile: Profile, file: str) -> Measured:
    return Measured(
        file=file,
        at=profile.measured_at.isoformat(timespec="seconds"),
        by=profile.measured_by,
        on=profile.host.text(),
        engine_tokens_per_s=profile.engine_tokens_per_s,
        rank_tokens_per_s=profile.rank_tokens_per_s,
        rank_packs=profile.rank_packs,
        link_bytes_per_s=profile.link_bytes_per_s,
    )


def _best(best: Best) -> BestSplit:
    second = None if best.second is None else _split(best.second)
    return BestSplit(first=_split(best.first), second=second, lead_frac=max(0.0, best.lead_frac))


def _split(made: Prediction) -> PredictedSplit:
    split = made.split
    return PredictedSplit(
        inference=split.num_engines,
        trainers=split.num_ranks,
        tokens_per_s=made.tokens_per_s,
        bottleneck=made.bottleneck,
    )
