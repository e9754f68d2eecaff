"""The run's state as it is told to the world: on disk after every change, and in the journal. Thread-safe."""

from __future__ import annotations

import logging
import threading
from datetime import UTC, datetime
from typing import Any

from dspark_train.controller.journal import Journal
from dspark_train.plan.run_layout import RunLayout
from dspark_train.report import state_file
from dspark_train.report.state import RunState

logger = logging.getLogger(__name__)


def now_text() -> str:
    """The time as ISO-8601 UTC."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


class Board:
    """Holds the state, writes `state.json` at each change, and appends to `events.jsonl`."""

    def __init__(self, layout: RunLayout, state: RunState) -> None:
        self.layout = layout
        self._state = state
        self._lock = threading.Lock()
        self._journal = Journal(layout.events)
        self._lasting = list(state.faults)
        self._passing: dict[str, str] = {}
        self._unwritten = False

    @property
    def state(self) -> RunState:
        """The state now; not to be changed but by :meth:`set`."""
        return self._state

    def set(self, **changes: Any) -> None:
        """Change fields of the state, and write it. A disk that is full keeps nothing from going on."""
        with self._lock:
            self._state = self._state.model_copy(update={**changes, "written_at": now_text()})
            try:
                state_file.write(self.layout.state, self._state)
            except OSError as error:
                if not self._unwritten:
                    logger.error("%s cannot be written: %s; the API still tells the state", self.layout.state, error)
                self._unwritten = True
            else:
                self._unwritten = False

    def event(self, kind: str, who: str, text: str, **data: Any) -> None:
        """Append one event to the journal, or to the log where its disk is full."""
        try:
            self._journal.write(kind, who, text, **data)
        except OSError as error:
            logger.error("%s %s: %s (not in the journal: %s)", kind, who, text, error)

    def say(self, phase: str) -> None:
        """Say what the run is doing or waiting for."""
        self.set(phase=phase)
        self.event("run.phase", "controller", phase)

    def warn(self, kind: str, who: str, fault: str, **data: Any) -> None:
        """A fault that the run lives with to its end: shown in the state, and an event."""
        self._lasting.append(fault)
        self._show_faults()
        self.event(kind, who, fault, **data)

    def fault(self, about: str, kind: str, who: str, text: str, **data: Any) -> None:
        """A fault that may heal: shown in the state until :meth:`heal` is told the same ``about``, and an event."""
        self._passing[about] = text
        self._show_faults()
        self.event(kind, who, text, **data)

    def ailing(self, prefix: str) -> list[str]:
        """Of whom there are faults that may heal, with names that begin so."""
        return [about for about in self._passing if about.startswith(prefix)]

    def heal(self, about: str) -> None:
        """The fault is over, if there was one."""
        if self._passing.pop(about, None) is not None:
            self._show_faults()

    def _show_faults(self) -> None:
        self.set(faults=[*self._lasting, *self._passing.values()])
