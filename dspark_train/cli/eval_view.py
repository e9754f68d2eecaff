"""What `eval` prints: a line a domain, a line a length, and what the confidence head is worth."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def table(found: Mapping[str, Any]) -> Iterator[str]:
    """The figures as lines for a terminal of 80 columns."""
    served = found.get("served")
    yield f"{found['algorithm']} draft {found['draft']}"
    yield f"for {found['target']}, {found['num_drafted']} tokens drafted at a time, {found['max_tokens']} an answer"
    for temperature, part in (found.get("by_temperature") or {f"{found['temperature']:g}": found}).items():
        yield ""
        yield from _figures(part, temperature, _same(served, temperature))
    if found.get("confidence"):
        yield ""
        yield from _confidence(found["confidence"])
    if "disagreement_frac" in found:
        yield ""
        yield f"reference and served differ by {_percent(found['disagreement_frac'])}"


def _figures(part: Mapping[str, Any], temperature: str, served: Mapping[str, Any] | None) -> Iterator[str]:
    how = "greedy" if float(temperature) == 0 else f"temperature {temperature}"
    head = f"{how:<20}{'accepted':>10}" + (f"{'served':>10}" if served else "")
    yield head + "   by position"
    for kind in ("domains", "lengths"):
        for name, row in part[kind].items():
            other = served[kind].get(name, {}) if served else None
            yield _row(f"{name} tokens" if kind == "lengths" else name, row, other)
    macro = {"accept_len": part["macro_accept_len"], "per_position": part["per_position"]}
    yield _row("mean of domains", macro, {"accept_len": served["macro_accept_len"]} if served else None)
    if lossless := part.get("lossless"):
        yield f"{lossless['num_differing']} of {lossless['num_tokens']} tokens are not the target's own"


def _row(name: str, row: Mapping[str, Any], served: Mapping[str, Any] | None) -> str:
    positions = " ".join(f"{each:.2f}" for each in row["per_position"][:8])
    other = f"{_length(served.get('accept_len')):>10}" if served is not None else ""
    return f"{name:<20}{_length(row['accept_len']):>10}{other}   {positions}"


def _confidence(found: Mapping[str, Any]) -> Iterator[str]:
    yield (
        f"confidence head: calibration error {found['ece']:.3f}, {found['ece_fitted']:.3f} at temperature "
        f"{found['temperature']:.2f} (fitted on other prompts)"
    )
    for row in found["trimming"]:
        yield (
            f"  trimmed at {row['load']} requests: {_percent(row['verified_frac'])} verified, "
            f"{row['accept_len']:.2f} of {row['whole_accept_len']:.2f} accepted, {row['speedup']:.2f} times as fast"
        )


def _same(served: Mapping[str, Any] | None, temperature: str) -> Mapping[str, Any] | None:
    if not served:
        return None
    found: Mapping[str, Any] = (served.get("by_temperature") or {}).get(temperature, served)
    return found


def _length(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"
