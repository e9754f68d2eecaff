"""What a member prints, and what Ray says of an error: both made fit to be read."""

from __future__ import annotations

import logging
import os
import re
import sys
from pathlib import Path

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def redirect_output(log: str) -> None:
    """Append everything this process prints, in C too, to the member's log."""
    Path(log).parent.mkdir(parents=True, exist_ok=True)
    fd = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    for stream, number in ((sys.stdout, 1), (sys.stderr, 2)):
        stream.flush()
        os.dup2(fd, number)
    os.close(fd)
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr, force=True
    )
    logging.getLogger("httpx").setLevel(logging.WARNING)  # a line a request would hide everything else


def first_lines(error: BaseException, num_lines: int = 4) -> str:
    """What Ray says, without colours and the pages that follow; of an error in an actor's own code, the last line."""
    plain = _COLOURS.sub("", str(error))
    lines = [line.strip() for line in plain.strip().splitlines() if line.strip()]
    if any("Traceback" in line or line.startswith("File ") for line in lines):
        return lines[-1]
    return " ".join(lines[:num_lines]) or type(error).__name__
