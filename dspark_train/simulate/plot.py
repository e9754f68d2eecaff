"""The course of every law as one self-contained HTML page: throughput and engines over time, drawn as SVG. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from string import Template

from dspark_train.simulate.run import Course
from dspark_train.simulate.scenario import Scenario

WIDTH, HEIGHT, LEFT, TOP = 900, 220, 60, 20
NUM_POINTS = 240
COLOURS = {"balance": "#0072b2", "static": "#999999", "occupancy": "#d55e00", "ratio": "#e69f00", "oracle": "#009e73"}
"""Okabe and Ito's palette, which colour-blind people tell apart."""
_PAGE = Template("""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>$name</title>
<style>
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
svg { width: 100%; height: auto; } text { font-size: 12px; fill: #444; } .axis { stroke: #bbb; }
polyline { fill: none; stroke-width: 1.6; } td, th { padding: .1rem .8rem; text-align: right; }
td:first-child, th:first-child { text-align: left; }
</style></head><body>
<h1>$name</h1><p>$text</p>
<table><tr><th>law</th><th>samples</th><th>of ideal</th><th>moves</th><th>reversals</th></tr>
$rows
</table>
<h2>Samples a second</h2>$throughput
<h2>Engines</h2>$engines
</body></html>
""")


def page(scenario: Scenario, courses: Mapping[str, Course]) -> str:
    """The page. Each line is the mean over a few minutes."""
    hours = scenario.hours
    rows = "\n".join(
        f'<tr><td style="color:{COLOURS[law]}">{law}</td><td>{course.samples:,.0f}</td><td>{course.of_ideal:.1%}</td>'
        f"<td>{len(course.moves)}</td><td>{course.num_reversals}</td></tr>"
        for law, course in courses.items()
    )
    rates = {law: means((course.trained / scenario.tick_s).tolist()) for law, course in courses.items()}
    engines = {law: means([float(s.num_engines) for s in course.splits]) for law, course in courses.items()}
    return _PAGE.substitute(
        name=escape(scenario.name),
        text=escape(scenario.text),
        rows=rows,
        throughput=_chart(rates, hours),
        engines=_chart(engines, hours),
    )


def means(values: Sequence[float]) -> list[float]:
    """At most NUM_POINTS means of neighbouring values."""
    size = max(1, -(-len(values) // NUM_POINTS))
    parts = [values[at : at + size] for at in range(0, len(values), size)]
    return [sum(part) / len(part) for part in parts]


def _chart(lines: Mapping[str, Sequence[float]], hours: float) -> str:
    top = max((max(values) for values in lines.values()), default=1.0) or 1.0
    drawn = "".join(
        f'<polyline stroke="{COLOURS[law]}" points="{_points(values, top)}"><title>{law}</title></polyline>'
        for law, values in lines.items()
    )
    bottom, right = TOP + HEIGHT, LEFT + WIDTH
    marks = "".join(
        f'<text x="{LEFT - 6}" y="{bottom - HEIGHT * part + 4:.0f}" text-anchor="end">{top * part:.3g}</text>'
        f'<line class="axis" x1="{LEFT}" x2="{right}" y1="{bottom - HEIGHT * part:.0f}" '
        f'y2="{bottom - HEIGHT * part:.0f}"/>'
        for part in (0, 0.5, 1)
    )
    times = "".join(
        f'<text x="{LEFT + WIDTH * part:.0f}" y="{bottom + 18}" text-anchor="middle">{hours * part:g} h</text>'
        for part in (0, 0.25, 0.5, 0.75, 1)
    )
    keys = "".join(
        f'<text x="{LEFT + 90 * place}" y="{TOP - 6}" style="fill:{COLOURS[law]}">{law}</text>'
        for place, law in enumerate(lines)
    )
    return f'<svg viewBox="0 0 {right + 30} {bottom + 30}" role="img">{marks}{times}{keys}{drawn}</svg>'


def _points(values: Sequence[float], top: float) -> str:
    step = WIDTH / max(1, len(values) - 1)
    return " ".join(
        f"{LEFT + place * step:.1f},{TOP + HEIGHT * (1 - value / top):.1f}" for place, value in enumerate(values)
    )
