"""Ranks wait for each other outside collectives, for as long as it takes.

A collective waits for the slowest rank, and a rank may wait minutes for samples while an engine is replaced. So ranks
first agree over the rendezvous' store that all have their data, and only then enter a collective, whose time-out
therefore means that a rank is gone. Over the same store rank 0 learns that every rank has done a unit, and all learn
that every rank is about to leave.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from dspark_train.trainer.group import GroupBroken

FIRST_PAUSE_S = 0.001
MAX_PAUSE_S = 0.02
"""Between two looks, growing. Not the store's own wait: each of its time-outs writes a warning to the log."""
DONE_PAUSE_S = 0.0002
"""The first one where ranks are in step, as after a collective: what it takes is added to every step."""
LOOK_S = 0.25
"""How often a wait looks whether the other ranks live."""
PART_LIMIT_S = 5.0
"""How long a rank that leaves waits for the others to be ready to leave as well."""
NUM_KEPT = 4
"""Old agreements are deleted once so many newer ones exist: nobody can still be waiting for them."""


class Agreement:
    """A series of meetings, each left by all ranks or by none."""

    def __init__(self, store: Any, world_size: int, is_whole: Callable[[], bool] = lambda: True) -> None:
        """store: torch's, of this group alone; is_whole: whether all ranks are there, as far as is known."""
        self._store, self._world_size, self._is_whole = store, world_size, is_whole
        self._number = 0
        self._num_done = 0

    def reach(self, ended: Callable[[], bool]) -> bool:
        """Wait until every rank has come to this meeting; False as soon as ``ended()`` says that they will not.

        Every rank calls this in the same order. Raises GroupBroken where a rank or the store is gone, and what
        ``ended`` raises.
        """
        self._number += 1
        if self._world_size == 1:
            return True
        count, go = (f"{name}/{self._number}" for name in ("count", "go"))
        try:
            if self._store.add(count, 1) == self._world_size:
                self._store.set(go, b"1")
                self._forget(self._number - NUM_KEPT)
                return True
            return self._wait(lambda: bool(self._store.check([go])), ended, FIRST_PAUSE_S)
        except dist.DistError as error:
            raise _gone(error) from error

    def tell_done(self) -> None:
        """Tell that this rank has done one more unit; does not wait. Raises GroupBroken."""
        self._num_done += 1
        if self._world_size > 1:
            try:
                self._store.add("done", 1)
            except dist.DistError as error:
                raise _gone(error) from error

    def all_done(self, ended: Callable[[], bool]) -> bool:
        """Wait until every rank has told that it has done as many units as this one; False once ``ended()``.

        No rank can be further: it would have had to meet this one. Raises GroupBroken, and what ``ended`` raises.
        """
        if self._world_size == 1:
            return True
        wanted = self._num_done * self._world_size
        try:
            return self._wait(lambda: bool(self._store.add("done", 0) >= wanted), ended, DONE_PAUSE_S)
        except dist.DistError as error:
            raise _gone(error) from error

    def part(self, is_last: bool, ended: Callable[[], bool]) -> None:
        """Wait until every rank is ready to leave, so that none takes its connections from one that needs them.

        is_last: on the rank that serves the rendezvous, which waits until no other needs it. Leaves also where a rank
        is gone, or does not come in time: nothing is needed of it any more.
        """
        if self._world_size == 1:
            return
        limit_s = time.monotonic() + PART_LIMIT_S

        def over() -> bool:
            return ended() or time.monotonic() > limit_s

        try:
            self._store.add("ready", 1)
            self._wait(lambda: bool(self._store.add("ready", 0) >= self._world_size), over, FIRST_PAUSE_S)
            if not is_last:
                self._store.add("gone", 1)
                return
            self._wait(lambda: bool(self._store.add("gone", 0) >= self._world_size - 1), over, FIRST_PAUSE_S)
        except (dist.DistError, GroupBroken):
            return

    def _wait(self, is_there: Callable[[], bool], ended: Callable[[], bool], pause_s: float) -> bool:
        look_s = time.monotonic() + LOOK_S
        while not is_there():
            if ended():
                return False
            if time.monotonic() > look_s:
                if not self._is_whole():
                    raise GroupBroken("another rank died: its connections are gone")
                look_s = time.monotonic() + LOOK_S
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, MAX_PAUSE_S)
        return True

    def _forget(self, number: int) -> None:
        if number > 0:
            for name in ("count", "go"):
                self._store.delete_key(f"{name}/{number}")


def gather(store: Any, rank: int, world_size: int, timeout_s: float, ended: Callable[[], bool]) -> bool:
    """Wait until all ranks of a group that forms are here; False once ``ended()``.

    Before rank 0, which takes over from the group before, nobody is in a hurry: that one may still wait for samples.
    The time-out begins when it is here. Raises TimeoutError, and torch's DistError where the rendezvous is gone.
    """
    if rank == 0:
        store.set("first", b"1")
    num_here, limit_s, pause_s = store.add("here", 1), float("inf"), FIRST_PAUSE_S
    while num_here < world_size:
        if ended():
            return False
        if limit_s == float("inf") and store.check(["first"]):
            limit_s = time.monotonic() + timeout_s
        if time.monotonic() > limit_s:
            raise TimeoutError(f"only {num_here} of {world_size} ranks are here")
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, MAX_PAUSE_S)
        num_here = store.add("here", 0)
    return True


def _gone(error: Exception) -> GroupBroken:
    return GroupBroken(f"the group's rendezvous is gone, and with it the process of rank 0: {error}")
