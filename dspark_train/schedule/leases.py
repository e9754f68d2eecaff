"""Live keys: the slot each stands for, the engine that works on it, until when; and keys nobody wants. Pure.

A key is new with every lease. What arrives under a key that is not live any more is late, and not wanted.
"""

from __future__ import annotations

import re
from collections import deque
from itertools import islice

from dspark_train.schedule.slot import Slot, State


def key_prefix(run: str, incarnation: str) -> str:
    """The part that all keys of one life of the ledger share. Only ``A-Za-z0-9_.-`` and one slash occur.

    incarnation: new each time the ledger starts, so that objects of an earlier life are never taken for new ones.
    """
    return "/".join(re.sub(r"[^A-Za-z0-9_.-]", "_", part) for part in (run, incarnation))


class Leases:
    """Who works on what. A slot's key is live from its lease until its object is given up or trained."""

    def __init__(self, prefix: str, lease_s: float) -> None:
        self.lease_s = lease_s
        self._prefix = prefix
        self._live: dict[str, Slot] = {}
        self._by_engine: dict[str, dict[str, Slot]] = {}
        self._deadlines: deque[tuple[float, str]] = deque()
        self._heard_s: dict[str, float] = {}

    def begin(self, slot: Slot, engine: str, now_s: float) -> None:
        """Lease the slot to the engine under a new key; its object belongs into the slot's home segment."""
        slot.num_leases += 1
        slot.key = f"{self._prefix}/{slot.unit}-{slot.pack}-{slot.piece}-{slot.num_leases}"
        slot.engine, slot.segment, slot.leased_at_s = engine, slot.home, now_s
        self._live[slot.key] = slot
        self._by_engine.setdefault(engine, {})[slot.key] = slot
        self._deadlines.append((now_s + self.lease_s, slot.key))

    def hear(self, engine: str, now_s: float) -> None:
        """The engine reported something, so it is alive."""
        self._heard_s[engine] = now_s

    def slot(self, key: str) -> Slot | None:
        """The slot that a live key stands for."""
        return self._live.get(key)

    def finish(self, slot: Slot) -> None:
        """The engine is done with it; the key stays live."""
        self._by_engine.get(slot.engine, {}).pop(slot.key, None)

    def forget(self, slot: Slot) -> str:
        """The key is not live any more; returns it."""
        self.finish(slot)
        del self._live[slot.key]
        key, slot.key = slot.key, ""
        return key

    def held_by(self, engine: str) -> list[Slot]:
        """The slots leased to an engine, in the order leased."""
        return list(self._by_engine.get(engine, {}).values())

    def num_held(self) -> dict[str, int]:
        """Engine -> slots leased to it."""
        return {engine: len(held) for engine, held in self._by_engine.items() if held}

    def expired(self, now_s: float) -> list[tuple[Slot, bool]]:
        """The slots whose lease is over, each once, with whether its engine was heard of since it began."""
        over = []
        while self._deadlines and self._deadlines[0][0] <= now_s:
            slot = self._live.get(self._deadlines.popleft()[1])
            if slot is not None and slot.state is State.LEASED:
                over.append((slot, self._heard_s.get(slot.engine, float("-inf")) > slot.leased_at_s))
        return over


class Unwanted:
    """Keys whose objects, if there are any, are to be removed from the store by whoever asks next.

    A key given up while its engine may still put is held back until that must be over: objects are pinned, so one put
    after its removal would take room until the run ends.
    """

    def __init__(self) -> None:
        self._now: deque[str] = deque()
        self._later: deque[tuple[float, str]] = deque()

    def add(self, key: str) -> None:
        """Its object is in the store, and of no use."""
        self._now.append(key)

    def add_later(self, key: str, due_s: float) -> None:
        """Its object may yet be put, until ``due_s``."""
        self._later.append((due_s, key))

    def pop(self, now_s: float, max_keys: int) -> list[str]:
        """Up to ``max_keys`` keys to remove now; each is returned once."""
        while self._later and self._later[0][0] <= now_s:
            self._now.append(self._later.popleft()[1])
        keys = list(islice(self._now, max_keys))
        for _ in keys:
            self._now.popleft()
        return keys
