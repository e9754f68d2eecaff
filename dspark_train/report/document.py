"""The report: one HTML file with everything in it, to be sent to a colleague. It asks nobody for anything."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from dspark_train import __version__
from dspark_train.plan.redact import HIDDEN, is_secret
from dspark_train.plan.run_layout import RunLayout
from dspark_train.report.plots import as_svg, plots, write_png
from dspark_train.report.story import Lost, Story
from dspark_train.report.sweep_plots import sweep_plots
from dspark_train.report.terminal import bytes_text, duration_text, number

MAX_EVENTS = 400
_SETTING = re.compile(r"^(\s*-?\s*)([\w.-]+)(:\s+)(\S.*)$")
LOST_WORDS = (
    ("busy_s", "training", "steps, while they did not wait"),
    ("waiting_s", "waiting for samples", "steps had too few: more engines would have helped"),
    ("starting_s", "starting", "until the first sample flowed"),
    ("pausing_s", "pauses", "the trainer group changed"),
    ("mending_s", "faults", "from a death until the group, the ledger or the store was whole again"),
    ("other_s", "other", "checkpoints, validation, steps slowed on purpose, the end of the run"),
)


def write_report(layout: RunLayout, story: Story) -> list[Path]:
    """Write `report.html` and, where there are figures, `report.png`. Returns their paths. Raises OSError."""
    made = plots(story) + (sweep_plots(story.serving) if story.serving else [])
    topology = layout.topology.read_text(encoding="utf-8") if layout.topology.exists() else ""
    loader = FileSystemLoader(Path(__file__).parent)
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    environment.filters |= {"duration": duration_text, "bytes": bytes_text, "figure": number}
    text = environment.get_template("report.html.j2").render(
        story=story,
        state=story.state,
        lost=lost_rows(story.lost),
        fault_counts=Counter(str(event["kind"]) for event in story.faults).most_common(),
        events=story.events[-MAX_EVENTS:],
        num_events=len(story.events),
        sweep=story.serving,
        speedups=story.serving.speedups() if story.serving else {},
        plots=[(plot.title, Markup(as_svg(plot))) for plot in made],
        topology=without_secrets(topology),
        version=__version__,
    )
    layout.report.write_text(text, encoding="utf-8")
    if not made:
        return [layout.report]
    write_png(made, layout.report_plots, f"{story.state.run}: {story.state.state} at step {story.state.step}")
    return [layout.report, layout.report_plots]


def lost_rows(lost: Lost) -> list[tuple[str, float, float, str]]:
    """(what, seconds, share of the whole, in words) of everything that took time."""
    whole_s = lost.wall_s or 1.0
    rows = [(word, float(getattr(lost, key)), text) for key, word, text in LOST_WORDS]
    return [(word, took_s, took_s / whole_s, text) for word, took_s, text in rows if took_s > 0]


def without_secrets(yaml: str) -> str:
    """The topology's text with the values of secret settings hidden."""

    def hidden(line: str) -> str:
        found = _SETTING.match(line)
        return f"{found[1]}{found[2]}{found[3]}{HIDDEN}" if found and is_secret(found[2]) else line

    return "\n".join(hidden(line) for line in yaml.splitlines())
