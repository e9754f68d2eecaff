"""Keeping a member's log from filling the disk: NAME.log, NAME.log.1 the one before, and so on.

Several processes hold the log open to append to it (the member, its vLLM, their children), and none can be told to open
another. So the text is copied away and the file emptied in place: they go on at its new end. What is written in the
moment between the last byte copied and the emptying is lost; a moment is some microseconds.
"""

from __future__ import annotations

import logging
import shutil
import threading
from pathlib import Path

logger = logging.getLogger(__name__)
LOOK_S = 5.0


def rotate(log: Path, max_bytes: int, keep: int) -> bool:
    """Empty ``log`` where it is larger than ``max_bytes``, keeping ``keep`` older ones. Raises OSError.

    Where there is no room to copy it, nothing is changed. Returns whether it was emptied.
    """
    if not log.is_file() or log.stat().st_size <= max_bytes:
        return False
    copy = log.with_name(f"{log.name}.new")
    try:
        with log.open("r+b") as source, copy.open("wb") as target:
            shutil.copyfileobj(source, target)
            while rest := source.read():  # what was written while the bulk was copied
                target.write(rest)
            source.truncate(0)
    except OSError:
        copy.unlink(missing_ok=True)
        raise
    for number in range(keep - 1, 0, -1):
        older = log.with_name(f"{log.name}.{number}")
        if older.exists():
            older.replace(log.with_name(f"{log.name}.{number + 1}"))
    copy.replace(log.with_name(f"{log.name}.1"))
    return True


def watch(log: Path, max_bytes: int, keep: int) -> threading.Event:
    """Rotate in a thread of this process until it ends, or until the event that is returned is set."""
    over = threading.Event()

    def run() -> None:
        is_told = False
        while not over.wait(LOOK_S):
            try:
                rotate(log, max_bytes, keep)
                is_told = False
            except OSError as error:
                if not is_told:
                    logger.warning("%s cannot be rotated: %s", log, error)
                is_told = True

    threading.Thread(target=run, name="log-rotation", daemon=True).start()
    return over
