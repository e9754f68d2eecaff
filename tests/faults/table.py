"""What became of each fault of a run: as a table to read, and as JSON for who makes a table of several runs."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from tests.faults.runner import Outcome, Row

OUT_VARIABLE = "DSPARK_FAULTS_OUT"
"""A directory for the JSON files, one a scenario."""
HEADINGS = ("whom", "what", "at step", "noticed", "repaired", "all well", "stood still", "the journal's first word")
NUM_JOURNAL_CHARS = 100


def show(outcome: Outcome) -> None:
    """Print the table, and write it where the environment says."""
    figures = (
        f"the first step after {outcome.start_s:.0f} s, machine {outcome.slowness:.1f} times as slow as a quiet one"
    )
    print(f"\n{outcome.scenario.name}: {outcome.state['state']} at step {outcome.state['step']}; {figures}")
    rows = [HEADINGS, *(_cells(row) for row in outcome.rows)]
    widths = [max(len(row[place]) for row in rows) for place in range(len(HEADINGS))]
    for row in rows:
        print("  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    if out := os.environ.get(OUT_VARIABLE):
        Path(out).mkdir(parents=True, exist_ok=True)
        text = json.dumps([_record(row) for row in outcome.rows], indent=1)
        (Path(out) / f"{outcome.scenario.name}.json").write_text(text + "\n", encoding="utf-8")


def _cells(row: Row) -> tuple[str, ...]:
    times_s = (row.detected_after_s, row.repaired_after_s, row.well_after_s, row.stood_still_s)
    figures = ["-" if time_s is None else f"{time_s:.1f} s" for time_s in times_s]
    return (row.fault.whom, row.fault.text(), str(row.at_step), *figures, row.journal[:NUM_JOURNAL_CHARS])


def _record(row: Row) -> dict[str, Any]:
    return {
        "whom": row.fault.whom,
        "what": row.fault.text(),
        "at_step": row.at_step,
        "detected_after_s": row.detected_after_s,
        "repaired_after_s": row.repaired_after_s,
        "well_after_s": row.well_after_s,
        "stood_still_s": row.stood_still_s,
        "journal": row.journal,
        "problem": row.problem,
    }
