"""What became of each thing that was done to a lab: as a table to read."""

from __future__ import annotations

from dataclasses import dataclass

HEADINGS = ("whom", "what", "noticed", "stopped itself", "stood still", "all well after", "a step takes", "lost")


@dataclass
class Row:
    """Times in seconds; None: does not apply."""

    whom: str
    what: str
    noticed_after_s: float | None = None
    fenced_after_s: float | None = None
    """Until nothing of the run was left on the host that was cut off."""
    stood_still_s: float | None = None
    """The longest time between two committed steps."""
    well_after_s: float | None = None
    """From when the host was back."""
    step_s: float | None = None
    """The median."""
    lost: str = "nothing"

    def cells(self) -> tuple[str, ...]:
        """In the order of the headings."""
        times_s = (self.noticed_after_s, self.fenced_after_s, self.stood_still_s, self.well_after_s)
        texts = ("-" if one is None else f"{one:.1f} s" for one in times_s)
        step = "-" if self.step_s is None else f"{self.step_s:.2f} s"
        return (self.whom, self.what, *texts, step, self.lost)


def show(title: str, rows: list[Row]) -> None:
    """Print the table."""
    lines = [HEADINGS, *(row.cells() for row in rows)]
    widths = [max(len(line[place]) for line in lines) for place in range(len(HEADINGS))]
    print(f"\n{title}")
    for line in lines:
        print("  " + "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
