"""Commits a unit beside training: the next one's passes begin meanwhile, its optimizer step waits.

On the way to the ledger and back a rank would stand still, in every step. Until a unit is committed, nothing is done
that could not be undone: no optimizer step, no checkpoint, no sample of it removed.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor


class Committer:
    """For the training thread of rank 0; where nothing was begun, nothing is waited for. Close it."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="commit")
        self._open: Future[None] | None = None

    def begin(self, commit: Callable[[], None]) -> None:
        """Have ``commit()`` made; the one before must be settled."""
        assert self._open is None, "the unit before is not settled"
        self._open = self._thread.submit(commit)

    def settle(self) -> None:
        """Return once what was begun is committed; raise what that raised, once."""
        pending, self._open = self._open, None
        if pending is not None:
            pending.result()

    def close(self) -> None:
        """Wait until nothing is being committed any more, whatever comes of it. Twice is fine."""
        self._thread.shutdown()
