"""Every error that a user can meet, as one tree. An error says what, where, and what to do.

`cli/app.py` alone turns one into an exit code; nothing here prints or logs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


class DSparkError(Exception):
    """Base of all our errors. ``exit_code`` is what the command line ends with."""

    exit_code = 1


class UsageError(DSparkError):
    """A command was called in a way that cannot work: says which argument, and what would."""

    exit_code = 2


@dataclass(frozen=True)
class Problem:
    """One thing wrong in a file.

    ``line`` is 1-based, 0 where the whole file is meant; ``key`` is the dotted path in the file ("" for the file).
    """

    file: str
    line: int
    key: str
    text: str
    remedy: str

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}" if self.line else self.file
        what = f"{self.key} {self.text}" if self.key else self.text
        return f"{where}: {what}: {self.remedy}"


class FileProblems(DSparkError):
    """A file that a user wrote is wrong; every problem is reported at once."""

    exit_code = 2

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))

    def __reduce__(self) -> tuple[type[FileProblems], tuple[tuple[Problem, ...]]]:
        return type(self), (self.problems,)


class TopologyError(FileProblems):
    """The topology file cannot be run as it is."""


class DataError(FileProblems):
    """A data file, or a prepared data set, cannot be used."""


class ProfileError(FileProblems):
    """A file of measured rates cannot be read."""


class PairingError(UsageError):
    """A draft and a target that do not belong together; says why."""


class RunNotFound(UsageError):
    """No run of that name or directory."""


class Unreachable(DSparkError):
    """The controller of a run does not answer."""

    exit_code = 5


class PeerError(DSparkError):
    """Another member of the run could not be called."""


class PeerLost(PeerError):
    """The peer does not exist, or died."""


class PeerTimeout(PeerError):
    """The peer did not answer before the deadline of the call."""


class Replaced(DSparkError):
    """Another member has taken this one's name: it was given up, and nothing from it counts any more."""


class ClusterError(DSparkError):
    """The cluster could not be reached, or could not do what it was asked."""


class StartError(DSparkError):
    """A component did not start; carries its log's path and last lines."""

    def __init__(self, what: str, log: str = "", last_lines: Sequence[str] = ()) -> None:
        self.what, self.log, self.last_lines = what, log, tuple(last_lines)
        text = f"{what}; log: {log}" if log else what
        if self.last_lines:
            text += "\n  last lines: " + "\n    ".join(self.last_lines)
        super().__init__(text)

    def __reduce__(self) -> tuple[type[StartError], tuple[str, str, tuple[str, ...]]]:
        return type(self), (self.what, self.log, self.last_lines)


class NoNode(StartError):
    """No node of the cluster is free for what is to start. It waits for one, and that does not count as a death."""


class StoreError(DSparkError):
    """The store refused or failed an operation; the message names the key and the status."""


class StoreFull(StoreError):
    """No segment has room for the object: back off, nothing is broken."""


class SampleMissing(StoreError):
    """The object is not in the store (never put, removed, or its segment's owner died)."""


class WrongData(DSparkError):
    """Hidden states that must not be trained on: non-finite, constant, wrong shape, wrong tokens."""


class CheckpointError(DSparkError):
    """A checkpoint could not be written, or none could be loaded."""
