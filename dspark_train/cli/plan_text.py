"""A plan as tables, and its commands as lines that a shell takes. Prints; decides nothing."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dspark_train.balance.seen import Split
from dspark_train.plan.spec import BestSplit, Bottleneck, Capacity, Measured, Plan, PredictedSplit, ProcessSpec

_WIDTH = 80
_UNKNOWN = "unknown"


def show(plan: Plan) -> None:
    """Print the whole plan, for a terminal of 80 columns or more."""
    console = Console(highlight=False, soft_wrap=False)
    nodes = f"{len(plan.nodes)} node{'s'[: len(plan.nodes) > 1]}"
    console.print(Text(f"{plan.topology}: {nodes}, {len(plan.processes)} processes", style="bold"))
    console.print(_processes(plan))
    for process in plan.processes:
        if process.argv[:1] != ("actor",):
            _command(console, process)
    console.print()
    console.print(_capacity(plan.capacity))
    for line in forecast_lines(plan):
        console.print(Text(line))
    for warning in plan.warnings:
        console.print(Text(f"warning: {warning}", style="yellow"))
    for missing in plan.unresolved:
        console.print(Text(f"launch refuses this until it is known: {missing}", style="red"))


def _table(*columns: str) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1), show_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _processes(plan: Plan) -> Table:
    table = _table("process", "node", "GPUs", "ports", "runs")
    for process in plan.processes:
        runs = process.argv[1].rpartition(":")[2] if process.argv[0] == "actor" else "the command below"
        gpus, ports = str(process.num_gpus or "-"), " ".join(process.ports) or "-"
        table.add_row(*(Text(cell) for cell in (process.name, process.node, gpus, ports, runs)))
    return table


def _command(console: Console, process: ProcessSpec) -> None:
    console.print(Text(f"\n# {process.name} on {process.node}", style="bold"))
    # Not through rich: it would break lines, and what a shell takes must stay as it is.
    words = [f"{name}={value}" for name, value in process.env.items()]
    print("\n".join(shell_lines([*(["env"] if words else []), *words, *process.argv])))


def shell_lines(words: Sequence[str], width: int = _WIDTH) -> list[str]:
    """``words`` as one shell command over lines of at most ``width`` columns.

    A word that is longer is broken into quoted pieces, which a shell joins: a backslash at the end of a line and no
    blank at the start of the next.
    """
    lines = [""]
    for word in words:
        pieces = list(_pieces(word, width - 4))
        fits = len(pieces) == 1 and len(lines[-1]) + len(pieces[0]) + 3 <= width
        if lines[-1] and fits:
            lines[-1] += f" {pieces[0]}"
        else:
            lines += [f"  {pieces[0]}" if lines[-1] else pieces[0], *pieces[1:]]
    lines = [line for line in lines if line]
    return [f"{line}{end}" for line, end in zip(lines, _ends(lines), strict=True)]


def _ends(lines: Sequence[str]) -> list[str]:
    """How each line goes on: a new word (it is indented), or the rest of the same one."""
    return [" \\" if following.startswith("  ") else "\\" for following in lines[1:]] + [""]


def _pieces(word: str, width: int) -> Iterator[str]:
    quoted = shlex.quote(word)
    if len(quoted) <= width:
        yield quoted
        return
    cut = max(1, width * len(word) // len(quoted) - 2)
    while word:
        while len(shlex.quote(word[:cut])) > width and cut > 1:
            cut -= 1
        yield shlex.quote(word[:cut])
        word = word[cut:]


def _capacity(capacity: Capacity) -> Table:
    table = _table("bytes", "", "")
    for label, value, meaning in _rows(capacity):
        table.add_row(label, Text(human(value), justify="right"), meaning)
    return table


def _rows(capacity: Capacity) -> Iterator[tuple[str, float | None, str]]:
    yield "a token", capacity.bytes_per_token, "hidden states of all layers stored"
    yield "a step", capacity.step_bytes, "its packs, full"
    yield "in flight", capacity.in_flight_bytes, "what all engines may extract at once"
    yield "store", capacity.store_bytes, "the segments of all ranks"
    yield "store needed", capacity.store_needed_bytes, "two steps and all in flight, under the high mark"
    yield "ring", capacity.ring_bytes, "pack buffers of one rank"
    yield "staging", capacity.staging_bytes, "write buffers of one engine, in host memory"
    yield "target", capacity.target_weight_bytes, "weights, over the GPUs of one engine"
    yield "draft", capacity.draft_state_bytes, "weights, gradients and optimizer state"
    yield "link a second", capacity.link_bytes_per_s_needed, "hidden states, engines to ranks"


_HELD_UP: dict[Bottleneck | None, str] = {
    "inference": "engines hold it up",
    "trainers": "ranks hold it up",
    "link": "the link holds it up",
    None: "the pools match",
}


def forecast_lines(plan: Plan) -> Iterator[str]:
    """What is predicted, and from which rates; nothing without a measurement."""
    tokens_per_s = plan.predicted.tokens_per_s
    if tokens_per_s is None or plan.measured is None:
        return
    yield f"predicted: {tokens_per_s:,.0f} tokens/s, {_HELD_UP[plan.predicted.bottleneck]}"
    if plan.best is not None:
        yield _best(plan.best)
    yield _measured(plan.measured)


def _best(best: BestSplit) -> str:
    text = f"best split: {_split(best.first)}, {best.first.tokens_per_s:,.0f} tokens/s; "
    if best.second is None:
        return f"{text}no other is legal"
    return f"{text}the next, {_split(best.second)}, is {best.lead_frac:.1%} worse"


def _split(made: PredictedSplit) -> str:
    return Split(made.inference, made.trainers).text()


def _measured(rates: Measured) -> str:
    link = "" if rates.link_bytes_per_s is None else f", the link {human(rates.link_bytes_per_s)}/s"
    return (
        f"from {rates.file}: one engine {rates.engine_tokens_per_s:,.0f} tokens/s, one rank "
        f"{rates.rank_tokens_per_s:,.0f} (at {rates.rank_packs} pack{'s'[: rates.rank_packs > 1]} a step){link}; by "
        f"{rates.by}, {rates.at}, {rates.on}"
    )


def human(num_bytes: float | None) -> str:
    """Bytes with a binary unit."""
    if num_bytes is None:
        return _UNKNOWN
    size, units = float(num_bytes), ["B", "KiB", "MiB", "GiB", "TiB"]
    while size >= 1024 and len(units) > 1:
        size, units = size / 1024, units[1:]
    return f"{size:.0f} {units[0]}" if units[0] == "B" else f"{size:.2f} {units[0]}"
