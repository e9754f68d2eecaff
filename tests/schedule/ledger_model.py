"""A plain model of what exists outside the ledger, every event that can befall it, and what must hold always.

``pick`` chooses from a sorted list: hypothesis or a seeded generator.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dspark_train.schedule.ledger import Ledger
from dspark_train.schedule.messages import Lease, Lost, Member, Ready
from dspark_train.schedule.rule import LedgerRule
from dspark_train.schedule.steps import Schedule, ScheduleSpec
from dspark_train.schedule.unit import pack_rank

LEASE_S = 10.0
MAX_ATTEMPTS = 3
SEQ_LEN = 20
Pick = Callable[[list[Any]], Any]
ENGINES = ["e1", "e2", "e3"]


def sample_bytes(num_tokens: int) -> int:
    return num_tokens * 3 + 1


@dataclass
class World:
    """What exists outside the ledger."""

    store: dict[str, int] = field(default_factory=dict)
    leased: dict[str, tuple[Lease, str, float]] = field(default_factory=dict)
    ready: dict[str, Lease] = field(default_factory=dict)
    held: dict[str, tuple[str, Lease]] = field(default_factory=dict)
    """Key -> the rank that took it."""
    put_by: dict[str, str] = field(default_factory=dict)
    """Key -> the engine that put it, as long as that is known to live."""
    released: set[str] = field(default_factory=set)
    heard_s: dict[str, float] = field(default_factory=dict)
    attempts: Counter[tuple[int, ...]] = field(default_factory=Counter)
    interruptions: Counter[tuple[int, ...]] = field(default_factory=Counter)
    old: list[Lease] = field(default_factory=list)
    """Leases that are over, whose answers may still come."""


def place(key: str) -> tuple[int, ...]:
    return tuple(int(part) for part in key.rsplit("/", 1)[1].split("-")[:3])


class Model:
    """The ledger, the world around it, and what was trained."""

    def __init__(self, lengths, num_ranks, tightness, step_packs, epochs, validation_frac, every, seed):
        self.schedule = Schedule(
            ScheduleSpec(
                lengths_tokens=np.array(lengths),
                seq_len=SEQ_LEN,
                step_packs=step_packs,
                seed=seed,
                epochs=epochs,
                validation_frac=validation_frac,
                validate_every_steps=every,
            )
        )
        self.units = [self.schedule.unit(index) for index in range(self.schedule.num_units)]
        self.tightness = tightness
        self.now_s = 0.0
        self.life = 0
        self.generation = 0
        self.num_named = 0
        self.members: list[Member] = []
        self.coming: tuple[int, list[Member], int] | None = None
        self.trained: list[Counter[int]] = []
        self.masked: list[set[tuple[int, ...]]] = []
        self.world = World()
        self.start(0)
        self.form(num_ranks, 0)

    def start(self, unit):
        self.life += 1
        ledger_rule = LedgerRule(f"run/{self.life}", LEASE_S, MAX_ATTEMPTS, 1.0, 0.9, max_units_ahead=5)
        self.ledger = Ledger(self.schedule, sample_bytes, ledger_rule, unit)
        self.ledger.run()

    # -- what may happen -------------------------------------------------------------------------------------------

    def regroup(self, pick):
        self.form(pick([1, 2, 3, 4, 5]), pick([0, 1, 2, 3, 4, 5]))

    def form(self, num_ranks, num_kept):
        """Some ranks stay, in any order, and some are new."""
        kept = [(member.name, member.segment) for member in self.members[:num_kept][::-1]]
        self.generation = max(self.generation, self.coming[2] if self.coming else 0) + 1
        self.coming = None
        self.members = [
            Member(*name, self.capacity(num_ranks, rank)) for rank, name in enumerate(self.filled(kept, num_ranks))
        ]
        assert self.ledger.set_group(self.members, self.generation) == len(self.trained)
        self.move_from(len(self.trained))

    def filled(self, kept, num_ranks):
        while len(kept) < num_ranks:
            self.num_named += 1
            kept.append((f"rank-{self.num_named}", f"segment-{self.num_named}"))
        return kept[:num_ranks]

    def announce(self, pick):
        """Some ranks stay, with their segments as they are, and some are new, from a later unit on."""
        if self.coming is not None:
            return
        num_ranks, kept = pick([1, 2, 3, 4, 5]), self.members[: pick([0, 1, 2, 3, 4, 5])][::-1][:5]
        members = []
        for rank, (name, segment) in enumerate(self.filled([(m.name, m.segment) for m in kept], num_ranks)):
            needed = self.capacity(num_ranks, rank)
            own = next((m for m in kept if m.name == name), None)
            if own is not None and own.capacity_bytes < needed:
                ((name, segment),) = self.filled([], 1)
                own = None
            members.append(own or Member(name, segment, needed))
        first = self.ledger.announce_group(members, self.generation + 1)
        assert len(self.trained) <= first <= len(self.units)
        self.coming = (first, members, self.generation + 1)
        self.move_from(first)
        self.switch_if_due()

    def switch_if_due(self):
        if self.coming is not None and len(self.trained) >= self.coming[0]:
            _, self.members, self.generation = self.coming
            self.coming = None

    def members_of(self, unit):
        return self.coming[1] if self.coming is not None and unit >= self.coming[0] else self.members

    def move_from(self, first):
        """The units from ``first`` on have changed hands: what was taken of them is not, some of it is not kept."""
        world = self.world
        moved = {key: found for key, found in world.held.items() if place(key)[0] >= first}
        world.ready |= {key: lease for key, (_, lease) in moved.items() if key not in world.released}
        world.held = {key: found for key, found in world.held.items() if key not in moved}
        world.released -= moved.keys()

        def stays(lease):
            return lease.unit < first or self.is_kept(lease)

        world.ready = {key: lease for key, lease in world.ready.items() if stays(lease)}
        world.old += [lease for lease, _, _ in world.leased.values() if not stays(lease)]
        world.leased = {key: found for key, found in world.leased.items() if stays(found[0])}

    def adopt(self, pick):
        """Every rank has trained the next unit, the committer died, and what is known of its samples varies."""
        self.form(len(self.members), 0)
        unit = len(self.trained)
        assert self.ledger.adopt(unit + 1) is None
        if unit == len(self.units):
            assert self.ledger.adopt(unit) is None
            return
        failed = self.failed_of(unit)
        assert self.ledger.adopt(unit) == self.units[unit]
        pieces = [(k, i, piece) for k, pack in enumerate(self.units[unit].packs) for i, piece in enumerate(pack.pieces)]
        self.trained.append(Counter(piece.sample for k, i, piece in pieces if (unit, k, i) not in failed))
        self.masked.append(failed)
        world = self.world
        world.old += [lease for lease, _, _ in world.leased.values() if lease.unit == unit]
        world.leased = {key: found for key, found in world.leased.items() if found[0].unit != unit}
        world.ready = {key: lease for key, lease in world.ready.items() if lease.unit != unit}
        self.move_from(unit + 1)

    def lose_store(self, pick):
        assert self.ledger.lose_store(self.now_s) == len(self.world.ready)
        for key, lease in self.world.ready.items():
            del self.world.store[key]
            self.end_attempt(lease, self.world.interruptions)
        self.world.ready.clear()

    def segment_of(self, lease):
        return self.member(place(lease.key)).segment

    def is_kept(self, lease):
        """Its segment trains it still, and has room for it and everything before it."""
        unit, pack, piece = place(lease.key)
        member = self.member((unit, pack, piece))
        before = sum(
            sample_bytes(found.num_tokens)
            for index in range(self.ledger.unit, unit + 1)
            for number, made in enumerate(self.units[index].packs)
            for place_in_pack, found in enumerate(made.pieces)
            if (index, number, place_in_pack) <= (unit, pack, piece)
            and self.member((index, number, place_in_pack)).segment == member.segment
            and (index, number, place_in_pack) not in self.failed_of(index)
        )
        return member.segment == lease.segment and before <= int(member.capacity_bytes * 0.9)

    def capacity(self, num_ranks, rank):
        largest = max(
            sum(
                sample_bytes(piece.num_tokens)
                for number, pack in enumerate(unit.packs)
                if pack_rank(len(unit.packs), num_ranks, number) == rank
                for piece in pack.pieces
            )
            for unit in self.units
        )
        return int(largest * self.tightness / 0.9) + 2

    def owner(self, where):
        return self.member(where).name

    def member(self, where):
        unit, pack, _ = where
        members = self.members_of(unit)
        return members[pack_rank(len(self.units[unit].packs), len(members), pack)]

    def begin_work(self, pick):
        self.lease(pick(ENGINES), pick([1, 2, 5, 10]), pick([0, 10, 30, 100]))

    def lease(self, engine, num, tokens):
        leases = self.ledger.lease(engine, num, tokens, self.now_s)
        assert len(leases) <= num
        assert sum(lease.num_tokens for lease in leases) <= tokens
        for lease in leases:
            unit, pack, piece = place(lease.key)
            planned = self.units[unit].packs[pack].pieces[piece]
            assert (lease.unit, lease.sample, lease.num_tokens) == (unit, planned.sample, planned.num_tokens)
            assert lease.segment == self.segment_of(lease)
            assert lease.key not in self.world.store
            self.world.leased[lease.key] = (lease, engine, self.now_s)
        return leases

    def work(self, pick):
        """An engine does what there is to do."""
        self.report("e2", [lease.key for lease in self.lease("e2", pick([1, 5, 20]), 10**6)], [])

    def an_engine_takes_its_answer_back(self, pick):
        if self.world.ready:
            key = pick(sorted(self.world.ready))
            self.end_attempt(self.world.ready.pop(key), self.world.attempts)
            self.world.heard_s["e1"] = self.now_s
            self.remove(self.ledger.report("e1", [], [Lost(key, "checked again")], self.now_s))

    def answer(self, pick):
        """An engine reports one of its leases."""
        fails = pick([False, False, True])
        if self.world.leased:
            key = pick(sorted(self.world.leased))
            self.report(self.world.leased[key][1], [] if fails else [key], [key] if fails else [])

    def report(self, engine, ready, lost):
        for key in ready:
            lease, by, _ = self.world.leased.pop(key)
            self.world.put_by[key] = by
            self.world.store[key] = sample_bytes(lease.num_tokens)
            self.world.ready[key] = lease
        for key in lost:
            self.end_attempt(self.world.leased.pop(key)[0], self.world.attempts)
        self.world.heard_s[engine] = self.now_s
        self.remove(
            self.ledger.report(
                engine,
                [Ready(key, self.world.store[key]) for key in ready],
                [Lost(key, "500") for key in lost],
                self.now_s,
            )
        )

    def end_attempt(self, lease, counter):
        counter[place(lease.key)] += 1
        self.world.old.append(lease)

    def remove(self, keys):
        in_use = {*self.world.ready, *self.world.held} - self.world.released
        assert not set(keys) & in_use, "an object in use was to be removed"
        for key in keys:
            self.world.store.pop(key, None)

    def late_answer(self, pick):
        """An engine answers a lease that is over, after putting its object."""
        as_ready = pick([True, False])
        if self.world.old:
            lease = pick(self.world.old)
            self.world.store[lease.key] = sample_bytes(lease.num_tokens)
            ready = [Ready(lease.key, sample_bytes(lease.num_tokens))] if as_ready else []
            unwanted = self.ledger.report("e1", ready, [] if as_ready else [Lost(lease.key, "late")], self.now_s)
            self.world.heard_s["e1"] = self.now_s
            assert lease.key in unwanted
            self.remove(unwanted)

    def repeated_answer(self, pick):
        if live := sorted({*self.world.ready, *self.world.held}):
            key = pick(live)
            self.world.heard_s["e1"] = self.now_s
            self.remove(self.ledger.report("e1", [Ready(key, self.world.store.get(key, 1))], [], self.now_s))
            if key in self.world.held:
                self.remove(self.ledger.report("e1", [], [Lost(key, "confused")], self.now_s))

    def drop_engine(self, pick):
        engine, is_suspect = pick(ENGINES), pick([False, True])
        mine = [key for key, (_, by, _) in self.world.leased.items() if by == engine]
        put = [key for key in self.world.ready if self.world.put_by.get(key) == engine] if is_suspect else []
        assert self.ledger.drop_engine(engine, self.now_s, is_suspect=is_suspect) == len(mine) + len(put)
        for key in mine:
            self.end_attempt(self.world.leased.pop(key)[0], self.world.interruptions)
        for key in put:
            self.end_attempt(self.world.ready.pop(key), self.world.interruptions)
        self.world.put_by = {key: by for key, by in self.world.put_by.items() if by != engine}

    def time_goes_on(self, pick):
        self.now_s += pick([0.0, 1.0, 4.0, LEASE_S])
        self.expire()

    def expire(self):
        over = [key for key, (_, _, since_s) in self.world.leased.items() if since_s + LEASE_S <= self.now_s]
        assert self.ledger.expire(self.now_s) == len(over)
        for key in over:
            lease, engine, since_s = self.world.leased.pop(key)
            heard = self.world.heard_s.get(engine, -1) > since_s
            self.end_attempt(lease, self.world.attempts if heard else self.world.interruptions)

    def train(self, pick):
        """All ranks take what they can of the next unit, and it is committed if that is all."""
        for rank in range(len(self.members)):
            self.take(rank, 0)
        self.commit(0, 1)
        self.commit(0, 0)

    def take_some(self, pick):
        self.take(pick([0, 1, 2, 3, 4]), pick([0, 1, 2]))

    def take(self, rank, ahead):
        member = self.members[rank % len(self.members)]
        unit = self.ledger.unit + ahead
        reply = self.ledger.take(member.name, unit, self.generation)
        if unit >= len(self.units):
            assert reply.kind == "done"
            return
        if self.coming is not None and unit >= self.coming[0]:
            assert reply.kind == "regroup"
            return
        assert reply.kind == "samples"
        for sample in reply.samples:
            lease = self.world.ready.pop(sample.key)
            assert self.world.store[sample.key] == sample.num_bytes
            assert place(sample.key) == (unit, sample.pack, sample.piece)
            assert self.owner(place(sample.key)) == member.name
            self.world.held[sample.key] = (member.name, lease)
        failed = {(unit, *found) for found in reply.failed}
        for where in failed:
            assert self.world.attempts[where] >= MAX_ATTEMPTS or self.world.interruptions[where] >= 4 * MAX_ATTEMPTS
        if reply.complete:
            assert self.handed_out(member.name, unit) + len(failed) == self.share(member.name, unit)

    def handed_out(self, rank, unit):
        return sum(by == rank and place(key)[0] == unit for key, (by, _) in self.world.held.items())

    def share(self, rank, unit):
        return sum(
            self.owner((unit, pack, 0)) == rank for pack, made in enumerate(self.units[unit].packs) for _ in made.pieces
        )

    def rank_loses_a_sample(self, pick):
        if unreleased := sorted({*self.world.held} - self.world.released):
            key = pick(unreleased)
            rank, lease = self.world.held.pop(key)
            assert self.ledger.lost(rank, [Lost(key, "not finite")], self.now_s) == 1
            self.end_attempt(lease, self.world.attempts)

    def release(self, pick):
        """A rank has read a sample and removed it; it cannot lose it any more."""
        if unreleased := sorted({*self.world.held} - self.world.released):
            key = pick(unreleased)
            rank, _ = self.world.held[key]
            self.world.released.add(key)
            del self.world.store[key]
            assert self.ledger.release(rank, [key, key]) == 1
            assert self.ledger.lost(rank, [Lost(key, "too late")], self.now_s) == 0

    def a_stranger_loses_nothing(self, pick):
        if self.world.held:
            key = pick(sorted(self.world.held))
            others = [m.name for m in self.members if m.name != self.world.held[key][0]] + ["rank-0"]
            assert self.ledger.lost(pick(others), [Lost(key, "?")], self.now_s) == 0
            assert self.ledger.release("rank-0", [key]) == 0

    def commit_anything(self, pick):
        self.commit(pick([0, 1, -1]), pick([0, 1]))

    def commit(self, offset, age):
        unit, generation = self.ledger.unit + offset, self.generation - age
        failed = self.failed_of(unit)
        done = self.handed_out_in(unit)
        complete = unit < len(self.units) and all(self.share_is_complete(member.name, unit) for member in self.members)
        expected = offset == 0 and age == 0 and complete
        assert self.ledger.commit(unit, generation) == expected
        if expected:
            self.trained.append(Counter(lease.sample for lease in done.values()))
            self.masked.append(failed)
            for key in done:
                del self.world.held[key]
                self.world.released.discard(key)
                self.world.store.pop(key, None)
            self.switch_if_due()

    def failed_of(self, unit):
        return {
            where
            for where in {*self.world.attempts, *self.world.interruptions}
            if where[0] == unit
            and (self.world.attempts[where] >= MAX_ATTEMPTS or self.world.interruptions[where] >= 4 * MAX_ATTEMPTS)
        }

    def handed_out_in(self, unit):
        return {key: lease for key, (_, lease) in self.world.held.items() if place(key)[0] == unit}

    def share_is_complete(self, rank, unit):
        failed = sum(self.owner(where) == rank for where in self.failed_of(unit))
        return self.handed_out(rank, unit) + failed == self.share(rank, unit)

    def resume_from_a_checkpoint(self, pick):
        """Everything restarts; what was trained after the checkpoint is trained again, and counts once."""
        steps = sum(self.units[index].kind == "train" for index in range(len(self.trained)))
        step = pick(list(range(steps + 1)))
        unit = min(self.schedule.first_unit_after_step(step), len(self.trained))
        del self.trained[unit:], self.masked[unit:]
        self.world = World()
        self.start(unit)
        self.form(len(self.members), 0)

    # -- what must hold --------------------------------------------------------------------------------------------

    def check(self):
        self.check_counts()
        self.check_bytes()

    def check_counts(self):
        view = self.ledger.view()
        total = sum(len(pack.pieces) for unit in self.units for pack in unit.packs)
        counts = (view.planned, view.leased, view.ready, view.taken, view.trained, view.failed)
        assert sum(counts) == total
        assert min(counts) >= 0
        assert (view.leased, view.ready, view.taken) == tuple(
            map(len, (self.world.leased, self.world.ready, self.world.held))
        )
        assert view.unit == len(self.trained)

    def check_bytes(self):
        held: Counter[str] = Counter()
        for lease in self.resident():
            held[lease.segment] += sample_bytes(lease.num_tokens)
        everyone = [*self.members, *(self.coming[1] if self.coming else ())]
        marks = {member.segment: int(member.capacity_bytes * 0.9) for member in everyone}
        assert all(num_bytes <= marks[segment] for segment, num_bytes in held.items())
        assert self.ledger.view().resident_bytes == sum(held.values())

    def resident(self):
        return [
            *(lease for lease, _, _ in self.world.leased.values()),
            *self.world.ready.values(),
            *(lease for key, (_, lease) in self.world.held.items() if key not in self.world.released),
        ]

    def finish(self):
        """From any state the run ends as long as engines ask and ranks take, with every sample trained as planned."""
        for _ in range(20 * len(self.units) * (MAX_ATTEMPTS + 1)):
            if self.ledger.state == "done":
                break
            self.now_s += LEASE_S / 4
            self.expire()
            leases = self.lease("e1", 3, 3 * SEQ_LEN)
            self.report("e1", [lease.key for lease in leases], [])
            for rank in range(len(self.members)):
                for ahead in (0, 1):
                    self.take(rank, ahead)
            self.commit(0, 0)
        assert self.ledger.state == "done", "the run is stuck"
        self.now_s += LEASE_S
        self.remove(self.ledger.pop_unwanted(self.now_s, 10**6))
        assert not self.world.store, "objects were left in the store for ever"
        for unit, trained, masked in zip(self.units, self.trained, self.masked, strict=True):
            planned = Counter(piece.sample for pack in unit.packs for piece in pack.pieces)
            missing = Counter(unit.packs[pack].pieces[piece].sample for _, pack, piece in masked)
            assert trained + missing == planned


EVENTS: dict[str, tuple[int, Callable[[Model, Pick], None]]] = {
    "work": (6, Model.work),
    "train": (6, Model.train),
    "begin work": (6, Model.begin_work),
    "answer": (8, Model.answer),
    "take": (4, Model.take_some),
    "time": (3, Model.time_goes_on),
    "late answer": (2, Model.late_answer),
    "repeated answer": (2, Model.repeated_answer),
    "answer taken back": (2, Model.an_engine_takes_its_answer_back),
    "rank loses": (3, Model.rank_loses_a_sample),
    "stranger loses": (1, Model.a_stranger_loses_nothing),
    "release": (2, Model.release),
    "drop engine": (1, Model.drop_engine),
    "commit": (2, Model.commit_anything),
    "regroup": (1, Model.regroup),
    "announce": (2, Model.announce),
    "adopt": (1, Model.adopt),
    "store lost": (1, Model.lose_store),
    "resume": (1, Model.resume_from_a_checkpoint),
}
"""Event -> how often it is drawn, and what it does."""
