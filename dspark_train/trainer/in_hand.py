"""What a rank still lacks of a unit that it is fetching: bookkeeping alone, no reading and no asking."""

from __future__ import annotations

from collections.abc import Sequence

from dspark_train.schedule.messages import TakenSample, TakeReply
from dspark_train.schedule.unit import Unit
from dspark_train.trainer.ring import Slot


class UnitInHand:
    """What is still to come of one unit: pieces by pack, and samples handed out whose pack has no slot yet."""

    def __init__(self, unit: Unit, own: range) -> None:
        self.index, self.unit = unit.index, unit
        self.asked = False
        self.num_received = 0
        self.unopened = list(own)
        self.slots: dict[int, Slot] = {}
        self.failed: dict[int, set[int]] = {pack: set() for pack in own}
        self.missing = {pack: set(range(len(unit.packs[pack].pieces))) for pack in own}
        self.handed: list[TakenSample] = []
        self.reading: set[tuple[int, int]] = set()
        self.keys: list[str] = []

    def needs_asking(self) -> bool:
        """Whether pieces are neither here, nor handed out, nor given up (or nothing was asked yet)."""
        on_the_way = self.reading | {(sample.pack, sample.piece) for sample in self.handed}
        return not self.asked or any((k, i) not in on_the_way for k, pieces in self.missing.items() for i in pieces)

    def note(self, reply: TakeReply) -> None:
        """Take in what the ledger handed out and gave up; what is here already is not read again."""
        self.asked = True
        self.num_received += len(reply.samples)
        self.handed += [s for s in reply.samples if s.piece in self.missing.get(s.pack, ())]
        for pack, piece in reply.failed:
            if piece in self.missing.get(pack, ()):
                self.missing[pack].discard(piece)
                self.failed[pack].add(piece)

    def readable(self, max_samples: int, max_bytes: int) -> list[TakenSample]:
        """Handed-out samples whose pack has a slot, in the order of the packs; they are being read now.

        Not more than the limits allow, but for a single sample larger than ``max_bytes``.
        """
        ready: list[TakenSample] = []
        for sample in sorted((s for s in self.handed if s.pack in self.slots), key=lambda s: (s.pack, s.piece)):
            max_samples, max_bytes = max_samples - 1, max_bytes - sample.num_bytes
            if ready and (max_samples < 0 or max_bytes < 0):
                break
            ready.append(sample)
        self.handed = [sample for sample in self.handed if sample not in ready]
        self.reading |= {(sample.pack, sample.piece) for sample in ready}
        return ready

    def unread(self, samples: Sequence[TakenSample]) -> None:
        """The end of what `readable` gave out."""
        self.reading -= {(sample.pack, sample.piece) for sample in samples}
