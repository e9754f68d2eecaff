"""The report's plots, by matplotlib: each as an SVG that takes the page's colours, and all as one PNG."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from dspark_train.report.story import Line, Story

MAX_POINTS = 1500
SIZE_IN = (5.2, 2.5)
MARGINS = {"left": 0.12, "right": 0.98, "top": 0.96, "bottom": 0.22}
PNG_DPI = 120
BLUE, ORANGE, GREY = "#2f6fde", "#c2570c", "#7a8191"
INK = "#010203"
"""Stands for the text's colour, and is none in the SVG: there it follows the page."""
_STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "dspark-train",
    "font.family": "sans-serif",
    "font.size": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.18,
    "grid.linewidth": 0.5,
    "legend.frameon": False,
    **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), INK),
    "grid.color": INK,
}


@dataclass(frozen=True, slots=True)
class Plot:
    """One plot: what it shows in words, and how it is drawn."""

    title: str
    draw: Callable[[Axes], None]


def plots(story: Story) -> list[Plot]:
    """The plots of a run that there are figures for."""
    if not story.steps:
        return []
    made = [_curve(story, "Loss", "loss", "loss"), _curve(story, "Acceptance length", "accept_len", "tokens")]
    if len(story.history):
        columns = story.history.since(0, 0)["columns"]
        made = [_pools(columns), _throughput(columns), *made, _waiting(columns), _store(columns)]
    if story.acceptance:
        made.append(_positions(story))
    return made


def as_svg(plot: Plot) -> str:
    """The plot as an <svg> element."""
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=SIZE_IN)
        figure.subplots_adjust(**MARGINS)  # matplotlib's own layouts draw everything twice
        plot.draw(figure.add_subplot())
        out = io.StringIO()
        figure.savefig(out, format="svg", transparent=True, metadata={"Date": None})
    text = out.getvalue()
    text = text[text.index("<svg") :].replace(INK, "currentColor")
    text = re.sub(r'width="[\d.]+pt" height="[\d.]+pt"', 'role="img"', text, count=1)
    return re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)


def write_png(made: Sequence[Plot], path: Path, title: str) -> None:
    """All plots in one picture. Raises OSError."""
    with mpl.rc_context({**_STYLE, **{key: "#222222" for key, value in _STYLE.items() if value == INK}}):
        num_rows = (len(made) + 1) // 2
        figure = Figure(figsize=(2 * SIZE_IN[0], num_rows * SIZE_IN[1]), dpi=PNG_DPI)
        figure.subplots_adjust(left=0.07, right=0.98, top=1 - 0.25 / num_rows, bottom=0.22 / num_rows, hspace=0.5)
        figure.suptitle(title)
        for index, plot in enumerate(made):
            axes = figure.add_subplot(num_rows, 2, index + 1)
            axes.set_title(plot.title, loc="left", fontweight="bold")
            plot.draw(axes)
        figure.savefig(path)


def thinned(lines: Sequence[Line], key: str) -> tuple[list[float], list[float]]:
    """Steps and values of ``key``, neighbours averaged so that there are no more than can be seen."""
    points = [(float(line["step"]), float(line[key])) for line in lines if line.get(key) is not None]
    width = -(-len(points) // MAX_POINTS) or 1
    groups = [points[start : start + width] for start in range(0, len(points), width)]
    return [group[-1][0] for group in groups], [sum(value for _, value in group) / len(group) for group in groups]


def _curve(story: Story, title: str, key: str, unit: str) -> Plot:
    def draw(axes: Axes) -> None:
        axes.plot(*thinned(story.steps, key), color=BLUE, lw=1.2, label="training")
        if story.rounds:
            axes.plot(*thinned(story.rounds, key), color=ORANGE, ls="--", marker="o", ms=3, lw=1.4, label="validation")
        axes.set_xlabel("step")
        axes.set_ylabel(unit)
        axes.legend()

    return Plot(title, draw)


def _over_time(axes: Axes, columns: dict[str, list[Any]], *lines: tuple[str, str, str, str], stepped: bool) -> None:
    """lines: (column, label, colour, style)."""
    at = np.array(columns["at_s"]).astype("datetime64[s]")
    nan = float("nan")
    for key, label, colour, style in lines:
        values = [nan if value is None else value for value in columns[key]]
        axes.plot(at, values, color=colour, ls=style, lw=1.4, label=label, drawstyle="steps-post" if stepped else None)
    axes.set_ylim(bottom=0)
    axes.tick_params(axis="x", labelrotation=20)
    axes.legend()


def _pools(columns: dict[str, list[Any]]) -> Plot:
    lines = [("engines_ready", "engines", BLUE, "-"), ("engines_desired", "wanted", BLUE, ":")]
    lines += [("ranks_ready", "ranks", ORANGE, "-"), ("ranks_desired", "wanted", ORANGE, ":")]

    def draw(axes: Axes) -> None:
        _over_time(axes, columns, *lines, stepped=True)
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))

    return Plot("Pool sizes", draw)


def _throughput(columns: dict[str, list[Any]]) -> Plot:
    services = zip(columns["engine_service_tokens_per_s"], columns["trainer_service_tokens_per_s"], strict=True)
    limit = [None if one is None or other is None else min(one, other) for one, other in services]
    lines = [("engine_tokens_per_s", "extracted", BLUE, "-"), ("trained_tokens_per_s", "trained", ORANGE, "-")]
    lines.append(("limit", "limit", GREY, "--"))

    def draw(axes: Axes) -> None:
        _over_time(axes, {**columns, "limit": limit}, *lines, stepped=False)
        axes.set_ylabel("tokens/s")

    return Plot("Throughput and its limit", draw)


def _waiting(columns: dict[str, list[Any]]) -> Plot:
    lines = [("engine_blocked_frac", "engines", BLUE, "-"), ("trainer_blocked_frac", "ranks", ORANGE, "--")]
    return Plot("Share of time without work", lambda axes: _over_time(axes, columns, *lines, stepped=False))


def _store(columns: dict[str, list[Any]]) -> Plot:
    mib = {key: [None if v is None else v / 2**20 for v in columns[key]] for key in columns if key.endswith("_bytes")}
    lines = [("store_used_bytes", "used", BLUE, "-"), ("store_capacity_bytes", "capacity", GREY, "--")]

    def draw(axes: Axes) -> None:
        _over_time(axes, {**columns, **mib}, *lines, stepped=False)
        axes.set_ylabel("MiB")

    return Plot("Store", draw)


def _positions(story: Story) -> Plot:
    places = [place for place, _, _ in story.acceptance]

    def draw(axes: Axes) -> None:
        firsts = [first for _, first, _ in story.acceptance if first is not None]
        if len(firsts) == len(places):
            axes.plot(places, firsts, "o:", color=GREY, label="first validation")
        axes.plot(places, [last for _, _, last in story.acceptance], "o-", color=BLUE, label="last validation")
        axes.set_ylim(0, 1)
        axes.set_xticks(places)
        axes.set_xlabel("position in the block")
        axes.set_ylabel("accepted")
        axes.legend()

    return Plot("Acceptance by position", draw)
