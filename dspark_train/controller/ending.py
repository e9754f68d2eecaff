"""What a run leaves behind when it ends: the root cause of a failure, and its report. Never fails: the run is over."""

from __future__ import annotations

import logging

from dspark_train.controller import journal
from dspark_train.engine.server import root_cause as telling_line
from dspark_train.plan.run_layout import RunLayout
from dspark_train.report.log_tail import log_paths
from dspark_train.report.root_cause import root_cause

logger = logging.getLogger(__name__)


def cause_of_failure(layout: RunLayout, reason: str) -> str:
    """Who failed first and why, "" where the journal and the logs do not tell. reason: what the run ends with."""
    try:
        events = journal.read(layout.events)
        at = events[-1]["at"] if events else ""
        events.append({"at": at, "kind": "run.failed", "who": "controller", "text": reason})
        return root_cause(events, log_paths(layout.logs), telling_line)
    except Exception:  # teardown: a log that cannot be read must not keep the run from ending
        logger.exception("the root cause is not known")
        return ""


def leave_report(layout: RunLayout) -> None:
    """Write the run's report; what goes wrong is in the log, and `dspark-train report` can be tried again."""
    try:
        from dspark_train.report.document import write_report  # matplotlib takes its time; a run needs it once
        from dspark_train.report.story import read_story

        if (story := read_story(layout, journal.read(layout.events))) is not None:
            write_report(layout, story)
    except Exception:  # teardown
        logger.exception("the report is not written; `dspark-train report %s` tries again", layout.name)
