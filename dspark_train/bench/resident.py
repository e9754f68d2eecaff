"""The resident memory of a process as the kernel tells it. Linux only."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

RESET_PEAK = "5"
"""What /proc/PID/clear_refs takes for it; see proc(5)."""


@dataclass(frozen=True, slots=True)
class Resident:
    """peak_bytes: the most since the process began or `reset_peak`; file_bytes: mapped files, libraries above all."""

    rss_bytes: int
    peak_bytes: int
    file_bytes: int


def resident(pid: int) -> Resident:
    """Of a process now. Raises OSError where it has ended."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    found = {name: value for name, _, value in (line.partition(":") for line in lines)}
    if "VmRSS" not in found:
        raise ProcessLookupError(pid)
    rss, peak, file = (int(found[name].split()[0]) * 1024 for name in ("VmRSS", "VmHWM", "RssFile"))
    return Resident(rss, peak, file)


def reset_peak(pid: int) -> None:
    """Let the peak begin anew, at what is resident now. Raises OSError."""
    Path(f"/proc/{pid}/clear_refs").write_text(RESET_PEAK, encoding="ascii")
