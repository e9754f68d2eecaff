"""The plots of a serving sweep: throughput against interactivity, and the wait for the first token."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes

from dspark_train.evaluate.sweep import Level, Sweep
from dspark_train.report.plots import BLUE, GREY, Plot


def sweep_plots(sweep: Sweep) -> list[Plot]:
    """Of the levels that were measured."""
    return [
        Plot("Serving: throughput against interactivity", lambda axes: _throughput(axes, sweep)),
        Plot("Serving: time to the first token", lambda axes: _first_token(axes, sweep)),
    ]


def title(sweep: Sweep) -> str:
    """What was measured, and where."""
    return f"{sweep.algorithm} draft, {sweep.num_speculative_tokens} tokens at a time; {sweep.machine}"


def _sides(sweep: Sweep) -> list[tuple[Sequence[Level], str, str, str]]:
    return [(sweep.with_draft, "with draft", BLUE, "o-"), (sweep.without_draft, "without", GREY, "s--")]


def _throughput(axes: Axes, sweep: Sweep) -> None:
    for levels, label, colour, style in _sides(sweep):
        known = [level for level in levels if level.user_tokens_per_s is not None]
        users = [level.user_tokens_per_s or 0.0 for level in known]
        axes.plot(users, [level.output_tokens_per_s for level in known], style, color=colour, ms=4, lw=1.4, label=label)
        for level, at in zip(known, users, strict=True):
            place = (at, level.output_tokens_per_s)
            axes.annotate(str(level.concurrency), place, (4, 4), textcoords="offset points", color=colour, fontsize=7)
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("tokens/s of one user (labels: users at once)")
    axes.set_ylabel("tokens/s of all")
    axes.legend()


def _first_token(axes: Axes, sweep: Sweep) -> None:
    for levels, label, colour, style in _sides(sweep):
        users = [level.concurrency for level in levels]
        axes.plot(users, [level.ttft_median_s for level in levels], style, color=colour, ms=4, label=f"{label}, median")
        axes.plot(users, [level.ttft_p95_s for level in levels], ":", color=colour, label=f"{label}, p95")
    axes.set_xscale("log", base=2)
    axes.set_xticks([level.concurrency for level in sweep.with_draft or sweep.without_draft])
    axes.get_xaxis().set_major_formatter("{x:g}")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("users at once")
    axes.set_ylabel("seconds")
    axes.legend()
