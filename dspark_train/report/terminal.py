"""A run's state for a terminal of 80 columns, and for a log file. One state in, text out; nothing is fetched here."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from dspark_train.report.pace import Left, left
from dspark_train.report.state import PoolState, RunState

STYLE = {
    "running": "green",
    "done": "bold green",
    "stopped": "yellow",
    "stopping": "yellow",
    "starting": "cyan",
    "failed": "bold red",
    "lost": "bold red",
    "ready": "green",
    "draining": "yellow",
    "dead": "bold red",
}

NEAR = 1.25
"""Two times left that differ by less are told as one."""


def bytes_text(num_bytes: float) -> str:
    """``1536`` -> ``1.5 KiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(num_bytes) < 1024:
            return f"{num_bytes:.0f} {unit}" if unit == "B" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:.1f} TiB"


def duration_text(seconds: float) -> str:
    """``3725`` -> ``1 h 02 min``."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02} min"
    return f"{minutes} min {rest:02} s" if minutes else f"{rest} s"


def number(value: float | None, pattern: str = ".3f") -> str:
    """The number, or a dash while it is not known."""
    return "-" if value is None else format(value, pattern)


def time_left(state: RunState, *paces_s: float | None) -> Left | None:
    """The time to the last step at these paces (seconds a step); None while there is none, or the run does not run."""
    if not state.total_steps or state.state != "running":
        return None
    return left(state.total_steps - state.step, [pace_s for pace_s in paces_s if pace_s])


def left_text(left: Left | None) -> str:
    """Such as "31 min 20 s to 40 min 02 s left"; "" where it is not known."""
    if left is None:
        return ""
    if left.high_s < NEAR * left.low_s:
        return f"about {duration_text(left.high_s)} left"
    return f"{duration_text(left.low_s)} to {duration_text(left.high_s)} left"


def render(state: RunState, left: Left | None = None) -> RenderableType:
    """The whole state: what it does, the cause of a failure, progress, figures, pools, store, faults."""
    parts: list[RenderableType] = [_headline(state)]
    if state.root_cause:
        parts.append(Text(f"root cause: {state.root_cause}", style=STYLE["failed"]))
    if state.total_steps:
        parts.append(_progress(state, left))
    parts += [_figures(state), _pools(state), _flow(state)]
    if state.reason:
        parts.append(Text(state.reason, style=STYLE.get(state.state, "")))
    parts += [Text(f"! {fault}", style="red") for fault in state.faults[-5:]]
    return Group(*parts)


def _headline(state: RunState) -> Text:
    line = Text.assemble(
        ("run ", "dim"), (state.run, "bold"), "  ", (state.state, STYLE.get(state.state, "")), no_wrap=True
    )
    if state.phase and state.state not in ("running",):
        line.append(f"  {state.phase}")
    return line


def _progress(state: RunState, left: Left | None) -> RenderableType:
    row = Table.grid(padding=(0, 1))
    row.add_row(
        f"step {state.step}/{state.total_steps}",
        ProgressBar(total=state.total_steps, completed=state.step, width=16),
        f"epoch {state.epoch}",
        left_text(left),
    )
    return row


def _figures(state: RunState) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_row(
        f"loss {number(state.loss)}",
        f"accept length {number(state.accept_len)}",
        f"{state.tokens_per_s:,.0f} tokens/s",
    )
    if state.validation_loss is not None:
        grid.add_row(
            f"validation {number(state.validation_loss)}", f"accept length {number(state.validation_accept_len)}"
        )
    return grid


def _pools(state: RunState) -> Table:
    table = Table(box=None, padding=(0, 1), header_style="dim")
    for column in ("pool", "ready", "tokens/s", "blocked", "member", "state", "pid"):
        table.add_column(column, justify="right" if column in ("tokens/s", "blocked", "pid") else "left")
    for name, pool in state.pools.items():
        limiting = " *" if state.bottleneck == name else ""
        for index, member in enumerate(pool.members or [None]):
            first = _pool_cells(name + limiting, pool) if index == 0 else ("", "", "", "")
            if member is None:
                table.add_row(*first, "", "", "")
            else:
                phase = Text(member.state, style=STYLE.get(member.state, ""))
                table.add_row(*first, member.name, phase, str(member.pid or "-"))
    return table


def _pool_cells(name: str, pool: PoolState) -> tuple[str, str, str, str]:
    blocked = "-" if pool.blocked_frac is None else f"{pool.blocked_frac:.0%}"
    return name, f"{pool.ready}/{pool.desired}", f"{pool.tokens_per_s:,.0f}", blocked


def _flow(state: RunState) -> Text:
    store, ledger = state.store, state.ledger
    text = Text()
    text.append(f"store {bytes_text(store.used_bytes)} of {bytes_text(store.capacity_bytes)}", style="dim")
    text.append(f", {store.num_samples} samples, {store.num_evicted} evicted\n", style="dim")
    text.append(
        f"samples: {ledger.planned} planned, {ledger.leased} leased, {ledger.ready} ready, {ledger.taken} taken, "
        f"{ledger.trained} trained, {ledger.failed} failed",
        style="dim",
    )
    if state.checkpoint is not None:
        age = duration_text(state.checkpoint.age_s)
        text.append(f"\ncheckpoint: step {state.checkpoint.step}, {age} old", style="dim")
    if state.bottleneck is not None:
        text.append(f"\n* bottleneck: {state.bottleneck}", style="dim")
    if state.drained:
        text.append(f"\ndrained: {', '.join(state.drained)}", style="dim")
    return text


def progress_line(state: RunState, left: Left | None) -> str:
    """One line for a log file."""
    parts = [f"step {state.step}/{state.total_steps}", f"loss {number(state.loss)}"]
    parts += [f"accept length {number(state.accept_len, '.2f')}", f"{state.tokens_per_s:,.0f} tokens/s"]
    parts.append(f"store {bytes_text(state.store.used_bytes)}")
    if state.bottleneck:
        parts.append(f"bottleneck {state.bottleneck}")
    if left is not None:
        parts.append(left_text(left))
    return "  ".join(parts)
