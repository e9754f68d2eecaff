"""What `prepare` shows: a line for each wait with how long it usually takes, and a summary at the end.

Everything but the summary goes to standard error; with --json the summary is one object on standard output.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from dspark_train.errors import Problem

NUM_PROBLEMS_SHOWN = 10
LINE_EVERY_S = 15.0
"""Without a terminal, progress is a line so often."""
NUM_PREVIEW_LINES = 12


@dataclass
class Outcome:
    """What `prepare` came to. made: False where the data set was there already, from the same inputs."""

    path: str
    made: bool
    num_samples: int
    num_tokens: int
    num_trained_tokens: int
    fingerprint: str
    lengths_tokens: dict[str, int]
    num_conversations: int = 0
    num_skipped: int = 0
    num_unanswered: int = 0
    num_empty_answers: int = 0
    num_cut_answers: int = 0
    num_reused_answers: int = 0
    num_cut_samples: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def percentiles(lengths: npt.NDArray[np.int64]) -> dict[str, int]:
    """The spread of sample lengths, in tokens."""
    values = {f"p{share}": int(np.percentile(lengths, share)) for share in (10, 50, 90)}
    return {"min": int(lengths.min()), **values, "max": int(lengths.max())}


class Narrator:
    """Says on standard error what is being waited for. ``seconds`` keeps what each step took."""

    def __init__(self) -> None:
        self._console = Console(file=sys.stderr, highlight=False)
        self.seconds: dict[str, float] = {}

    def say(self, text: str, style: str = "") -> None:
        self._console.print(Text(text, style=style), soft_wrap=True)

    def problems(self, problems: Sequence[Problem], what: str) -> None:
        """The first problems, one a line, under a heading."""
        if not problems:
            return
        self.say(f"{what}: {len(problems)}", "yellow")
        for problem in problems[:NUM_PROBLEMS_SHOWN]:
            self.say(f"  {problem}")
        if len(problems) > NUM_PROBLEMS_SHOWN:
            self.say(f"  and {len(problems) - NUM_PROBLEMS_SHOWN} more")

    @contextmanager
    def step(self, name: str, text: str, usual: str) -> Iterator[None]:
        """A wait without a measure of progress. usual: how long it usually takes."""
        started_s = time.monotonic()
        if self._console.is_terminal:
            with self._progress(TextColumn("{task.description}")) as progress:
                progress.add_task(f"{text} ({usual})", total=None)
                yield
        else:
            self.say(f"{text} ({usual}) ...")
            yield
        self._ended(name, text, started_s)

    @contextmanager
    def bar(self, name: str, text: str, total: int) -> Iterator[Bar]:
        """A wait that counts to ``total``."""
        started_s = time.monotonic()
        if self._console.is_terminal:
            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[note]}"),
            )
            with self._progress(*columns) as progress:
                yield _ShownBar(progress, progress.add_task(text, total=total, note=""))
        else:
            self.say(f"{text} ...")
            yield _PrintedBar(self, text, total)
        self._ended(name, text, started_s)

    def _ended(self, name: str, text: str, started_s: float) -> None:
        self.seconds[name] = round(time.monotonic() - started_s, 1)
        self.say(f"{text}: done in {self.seconds[name]:.1f} s")

    def _progress(self, *columns: Any) -> Progress:
        return Progress(SpinnerColumn(), *columns, TimeElapsedColumn(), console=self._console, transient=True)


class Bar(Protocol):
    """Where a count has come to."""

    def update(self, num_done: int, note: str) -> None:
        """num_done: of the total. note: what else is known, such as a speed."""


class _ShownBar:
    def __init__(self, progress: Progress, task: Any) -> None:
        self._bar, self._task = progress, task

    def update(self, num_done: int, note: str) -> None:
        self._bar.update(self._task, completed=num_done, note=note)


class _PrintedBar:
    def __init__(self, narrator: Narrator, text: str, total: int) -> None:
        self._narrator, self._text, self._total = narrator, text, total
        self._said_s = time.monotonic()

    def update(self, num_done: int, note: str) -> None:
        if time.monotonic() - self._said_s >= LINE_EVERY_S:
            self._narrator.say(f"{self._text}: {num_done}/{self._total} {note}")
            self._said_s = time.monotonic()


def summary(outcome: Outcome) -> Table:
    """The figures of a data set as two columns."""
    table = Table(show_header=False, box=None, padding=(0, 2), title=f"data set {outcome.path}", title_justify="left")
    spread = "  ".join(f"{name} {value}" for name, value in outcome.lengths_tokens.items())
    rows: Mapping[str, str] = {
        "samples": f"{outcome.num_samples:,}",
        "tokens": f"{outcome.num_tokens:,}, of which {outcome.num_trained_tokens:,} are trained on",
        "lengths": f"{spread} tokens",
        "left out": _left_out(outcome),
        "cut": f"{outcome.num_cut_samples:,} samples at seq_len, {outcome.num_cut_answers:,} answers at --max-tokens",
    }
    for name, text in rows.items():
        table.add_row(name, text)
    return table


def _left_out(outcome: Outcome) -> str:
    counts = {
        "broken records": outcome.num_skipped,
        "unanswered": outcome.num_unanswered,
        "empty answers": outcome.num_empty_answers,
        **outcome.dropped,
    }
    return "; ".join(f"{count:,} {reason}" for reason, count in counts.items() if count) or "nothing"


def preview(pieces: Sequence[tuple[str, bool]]) -> Text:
    """One sample, cut after a few lines; what is trained on is bold and marked at the margin."""
    lines: list[tuple[str, bool]] = []
    for text, trained in pieces:
        lines += [(line, trained) for line in text.splitlines() if line.strip()]
    shown = Text("a sample (+ is trained on):\n")
    for line, trained in lines[:NUM_PREVIEW_LINES]:
        shown.append(f"  {'+' if trained else ' '} {line}\n", "bold green" if trained else "dim")
    if len(lines) > NUM_PREVIEW_LINES:
        shown.append(f"    and {len(lines) - NUM_PREVIEW_LINES} more lines\n", "dim")
    return shown
