"""What is known and expected of a run that goes on: rates with their errors, what other splits would give. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

from dspark_train.balance.decide import known_rates
from dspark_train.balance.decision import State
from dspark_train.balance.model import Best, Prediction, neighbours
from dspark_train.balance.rule import Settings
from dspark_train.balance.seen import Observation


@dataclass(frozen=True, slots=True)
class RateNow:
    """Tokens a second; its standard error; seconds since it was last seen."""

    tokens_per_s: float
    error_tokens_per_s: float
    age_s: float


@dataclass(frozen=True, slots=True)
class Outlook:
    """What is known and what is expected. Rates are None, and predictions empty, while they are not known."""

    engines: dict[str, RateNow | None]
    inference: RateNow | None
    """Of all engines together."""
    rank: RateNow | None
    """Of one rank that has packs to train."""
    link: RateNow | None
    """None while the link holds nobody up."""
    now: Prediction | None
    neighbours: tuple[Prediction, ...]
    """Legal splits with one member more or less."""
    best: Best | None


def outlook(settings: Settings, state: State, seen: Observation) -> Outlook:
    """From the state after a decision, and what it was made on."""
    at_s, known = seen.at_s, state.known
    tracks = {engine.name: known.engines.get(engine.name) for engine in seen.engines}
    engines = {
        name: _rate(track.rate.value, track.rate.error(at_s), track.rate.age_s(at_s)) if track and track.rate else None
        for name, track in tracks.items()
    }
    seen_rates = [rate for rate in engines.values() if rate is not None]
    total = None
    if seen_rates and len(seen_rates) == len(engines):
        error = sqrt(sum(rate.error_tokens_per_s**2 for rate in seen_rates))
        total = _rate(sum(rate.tokens_per_s for rate in seen_rates), error, max(rate.age_s for rate in seen_rates))
    rates = known_rates(settings, known, seen)
    model = rates.model if rates is not None else None
    return Outlook(
        engines=engines,
        inference=total,
        rank=_rate(known.rank.value, known.rank.error(at_s), known.rank.age_s(at_s)) if known.rank else None,
        link=_rate(known.link.value, known.link.error(at_s), known.link.age_s(at_s)) if known.link else None,
        now=model.predict(seen.split) if model else None,
        neighbours=tuple(model.predict(split) for split in neighbours(seen.split) if settings.layout.is_legal(split))
        if model
        else (),
        best=model.best(settings.layout, seen.split) if model else None,
    )


def _rate(value: float, error: float, age_s: float) -> RateNow:
    return RateNow(value, error, age_s)
