"""A run without engines: a small data set, hidden states drawn from each sample's number, and a ledger that is real.

The ledger (the pure one) is served from the test's process; every lease is answered at once. Ranks run as processes of
their own, each with the shipped in-memory store, into which what it takes is put just before.
"""

from __future__ import annotations

import json
import multiprocessing
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.managers import BaseManager
from pathlib import Path
from typing import Any

import numpy as np

from dspark_train.errors import DSparkError, PeerTimeout
from dspark_train.schedule.ledger import Ledger
from dspark_train.schedule.messages import Commit, Lost, Member, Ready, TakeReply
from dspark_train.schedule.rule import LedgerRule
from dspark_train.schedule.steps import Schedule, ScheduleSpec
from dspark_train.store.in_memory import InMemoryServer
from dspark_train.store.protocol import SampleLayout
from dspark_train.topology.facts import TargetFacts
from dspark_train.topology.resolve import Resolved, resolve
from dspark_train.topology.schema import Topology
from dspark_train.trainer.group import GroupSpec

HIDDEN, LAYERS, VOCAB, SEQ_LEN, STEP_PACKS = 64, (1, 2), 512, 96, 4
NUM_STORED = len(LAYERS) + 1
BYTES_PER_TOKEN = NUM_STORED * HIDDEN * 4
SEGMENT_BYTES = 64 << 20
DEADLINE_S = 60.0
TRAIN = {"num_layers": 1, "block_size": 4, "max_anchors": 12, "draft_vocab_size": 128, "markov_rank": 16, "lr": 1e-3}


def topology(target_dir: Path, data_dir: Path, **changes: Any) -> Topology:
    """A topology of this data set; ``changes`` are sections, merged one level deep."""
    sections: dict[str, Any] = {
        "name": "recorded",
        "target": {"model": str(target_dir), "layers": list(LAYERS)},
        "draft": {"algorithm": "dspark", "train": dict(TRAIN)},
        "data": {"path": str(data_dir), "seq_len": SEQ_LEN, "step_packs": STEP_PACKS, "validation_frac": 0.15},
        "nodes": {"shared": {"count": 1, "gpus": 0}},
        "engines": {"count": {"start": 1, "max": 1}},
        "trainers": {"ranks": {"start": 1, "max": 4}, "group_timeout_s": 30},
        "store": {"segment_gib": 0.0625},
        "run": {"seed": 7, "max_steps": 6},
        "validation": {"every_steps": 3},
        "checkpoint": {"every_steps": 3},
    }
    for name, section in changes.items():
        sections[name] = {**sections.get(name, {}), **section}
    return Topology.model_validate(sections)


def write_dataset(directory: Path, num_samples: int = 40) -> None:
    """A prepared data set of random tokens, 5-90 a sample, the first third of each masked."""
    from datasets import Dataset as Rows

    from dspark_train.data.dataset import write_index

    drawn = np.random.default_rng(3)
    lengths = drawn.integers(5, 90, num_samples)
    ids = [drawn.integers(4, 200, n).tolist() for n in lengths]
    masks = [[int(i >= n // 3) for i in range(n)] for n in lengths]
    rows = Rows.from_dict({"input_ids": ids, "loss_mask": masks, "seq_len": lengths.tolist()})
    rows.save_to_disk(str(directory / "dataset"))
    write_index(directory, target="recorded", seq_len=SEQ_LEN, inputs="", options={})
    import torch

    trained = [
        token for row, mask in zip(ids, masks, strict=True) for token, kept in zip(row, mask, strict=True) if kept
    ]
    values, counts = np.unique(trained, return_counts=True)
    torch.save(dict(zip(values.tolist(), counts.tolist(), strict=True)), directory / "token_freq.pt")


def hidden_states(sample: int, num_tokens: int) -> np.ndarray:
    """[num_tokens, layers, hidden] float32 of a sample: equal for every cut of it."""
    return np.random.default_rng(1000 + sample).standard_normal((num_tokens, NUM_STORED, HIDDEN), dtype=np.float32)


def sample_object(sample: int, ids: np.ndarray, num_tokens: int, num_layers: int = NUM_STORED) -> bytes:
    """A sample's object as an engine puts it; of fewer layers, the last ones."""
    layout = SampleLayout(num_tokens, num_layers * HIDDEN * 4)
    out = bytearray(layout.total_bytes)
    out[: layout.hidden_bytes] = hidden_states(sample, num_tokens)[:, -num_layers:].tobytes()
    out[layout.tokens_offset : layout.tokens_offset + layout.tokens_bytes] = ids[:num_tokens].astype("<i8").tobytes()
    return bytes(out)


def resolved_run(target_dir: Path, data_dir: Path, **changes: Any) -> Resolved:
    """The resolved topology of the tiny target."""
    return resolve(
        topology(target_dir, data_dir, **changes), TargetFacts(num_layers=4, hidden_size=HIDDEN, vocab_size=VOCAB)
    )


def make_run(root: Path, target_dir: Path, data_dir: Path, **changes: Any) -> Path:
    """A run directory with resolved.json and a plan.json that names ranks only."""
    root.mkdir(parents=True, exist_ok=True)
    resolved = resolved_run(target_dir, data_dir, **changes)
    (root / "resolved.json").write_text(resolved.model_dump_json())
    processes = [
        {"name": name, "kind": kind, "node": "n", "argv": [], "env": {}, "ports": {}, "num_gpus": 0}
        for name, kind in [("master", "master"), *((f"rank-{i}", "rank") for i in range(4))]
    ]
    capacity = {
        "bytes_per_token": None,
        "step_bytes": None,
        "in_flight_bytes": None,
        "store_bytes": 0,
        "store_needed_bytes": None,
        "link_bytes_per_s_needed": None,
        "target_weight_bytes": None,
        "draft_state_bytes": None,
        "ring_bytes": None,
        "staging_bytes": None,
        "segment_bytes": 0,
        "segment_needed_bytes": None,
    }
    plan = {"topology": "", "nodes": [], "processes": processes, "capacity": capacity, "predicted": {}, "warnings": []}
    (root / "plan.json").write_text(json.dumps(plan))
    return root


@dataclass(frozen=True)
class Join:
    """A group that the ranks below ``world_size`` are asked to form."""

    world_size: int
    resume_step: int | None = None
    generation: int = 1


@dataclass
class Hub:
    """The ledger, served to ranks; and what they committed."""

    schedule: Schedule
    stop_at_step: int | None = None
    stop_now: bool = False
    withhold_from_unit: int | None = None
    """From this unit on no sample comes."""
    fence_from_unit: int | None = None
    """From this unit on no commit is accepted."""
    commits: list[Commit] = field(default_factory=list)
    checkpointed: list[int] = field(default_factory=list)
    lost: list[Lost] = field(default_factory=list)
    groups: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Generation -> its first unit, and the port of its rendezvous."""
    num_released: int = 0
    _num_left: int = 0

    def __post_init__(self) -> None:
        self._changed = threading.Condition()
        self._ledger = self._new_ledger(0)

    def _new_ledger(self, first_unit: int) -> Ledger:
        rule = LedgerRule(
            f"recorded/{secrets.token_hex(4)}", lease_s=1e9, max_attempts=4, max_failed_frac=1.0, high_mark_frac=0.9
        )
        return Ledger(self.schedule, lambda n: SampleLayout(n, BYTES_PER_TOKEN).total_bytes, rule, first_unit)

    def _begin(self, join: Join, port: int = 0) -> None:
        """Begin a generation with a ledger of its own, after the step to resume from or where the last one is."""
        step = join.resume_step
        unit = self._ledger.unit if step is None else self.schedule.first_unit_after_step(step)
        self._ledger = self._new_ledger(unit)
        members = [Member(f"rank-{i}", f"rank-{i}", SEGMENT_BYTES) for i in range(join.world_size)]
        self._ledger.set_group(members, join.generation)
        self._ledger.run()
        self.groups[join.generation] = (unit, port)

    def _group(self, generation: int) -> tuple[int, int] | None:
        return self.groups.get(generation)

    def call(self, method: str, *args: Any) -> Any:
        with self._changed:
            result = getattr(self, f"_{method}")(*args)
            self._changed.notify_all()
            return result

    def _take(
        self, rank: str, unit: int, wait_s: float, generation: int, num_received: int
    ) -> tuple[TakeReply, dict[str, tuple[int, int]]]:
        """The reply, and of each key the sample and its tokens, for the rank's store."""
        deadline_s = time.monotonic() + wait_s
        if self.withhold_from_unit is not None and unit >= self.withhold_from_unit:
            self._changed.wait(wait_s)
            return TakeReply("samples"), {}
        while True:
            while leases := self._ledger.lease("engine", 8, 10**9, 0.0):
                for lease in leases:
                    size = SampleLayout(lease.num_tokens, BYTES_PER_TOKEN).total_bytes
                    self._ledger.report("engine", [Ready(lease.key, size)], [], 0.0)
            reply = self._ledger.take(rank, unit, generation, num_received)
            left_s = deadline_s - time.monotonic()
            if reply.kind != "samples" or reply.samples or reply.complete or left_s <= 0:
                break
            self._changed.wait(left_s)
        packs = self.schedule.unit(unit).packs if unit < self.schedule.num_units else ()
        pieces = {s.key: packs[s.pack].pieces[s.piece] for s in reply.samples}
        return reply, {key: (piece.sample, piece.num_tokens) for key, piece in pieces.items()}

    def _lost(self, rank: str, lost: list[Lost]) -> None:
        self.lost += lost
        self._ledger.lost(rank, lost, 0.0)

    def _commit(self, commit: Commit) -> bool:
        if self.fence_from_unit is not None and commit.unit >= self.fence_from_unit:
            return False
        if not self._ledger.commit(commit.unit, commit.generation):
            return False
        self.commits.append(commit)
        if self.stop_at_step is not None and commit.metrics["step"] == self.stop_at_step:
            self._ledger.announce_stop(self.stop_now)
        return True

    def _release(self, rank: str, keys: list[str]) -> None:
        self.num_released += self._ledger.release(rank, keys)

    def _announce(self, now: bool) -> int:
        return self._ledger.announce_stop(now)

    def _checkpointed(self, step: int) -> None:
        self.checkpointed.append(step)

    def _leave(self, num_ranks: int) -> None:
        """Wait until all ranks are here: the first to end must not take the group from the others."""
        self._num_left += 1
        self._changed.notify_all()
        self._changed.wait_for(lambda: self._num_left >= num_ranks, DEADLINE_S)

    def of(self, kind: str) -> list[dict[str, Any]]:
        """Metrics of the committed units of a kind ("train", "validate"), in order."""
        return [c.metrics for c in self.commits if self.schedule.unit(c.unit).kind == kind]


def commit_of(unit: int, step: int) -> Commit:
    """A commit of generation 1."""
    return Commit(unit, 1, {"step": step})


def first_sample(data: Path) -> int:
    """The sample that comes first in the first unit."""
    from dspark_train.data.dataset import Dataset

    schedule = Schedule(ScheduleSpec.of(topology(data, data), Dataset.open(data).lengths))
    return schedule.unit(0).packs[0].pieces[0].sample


class HubPeers:
    """`Peers` of one rank: the hub's ledger, and the store filled with what is taken."""

    def __init__(
        self,
        hub: Any,
        tokens: Any,
        put: Callable[[str, bytes], Any],
        spoil: Callable[[int, bytes], bytes | None] = lambda sample, data: data,
        num_layers: int = NUM_STORED,
    ) -> None:
        """spoil: makes of a sample's bytes what is put; None: nothing is. num_layers: that a sample has."""
        self._hub, self._tokens, self._put, self._spoil = hub, tokens, put, spoil
        self._num_layers = num_layers

    def call(self, name: str, method: str, *args: Any, timeout_s: float) -> Any:
        assert name == "ledger"
        result = self._hub.call(method, *args)
        if method != "take":
            return result
        reply, samples = result
        for key, (sample, num_tokens) in samples.items():
            ids = self._tokens.token_ids(sample)
            data = self._spoil(sample, sample_object(sample, ids, num_tokens, self._num_layers))
            if data is not None:
                self._put(key, data)
        return reply

    async def acall(self, name: str, method: str, *args: Any, timeout_s: float) -> Any:
        raise PeerTimeout("not used here")


class _Manager(BaseManager):
    pass


_Manager.register("hub")


def serve(hub: Hub) -> Any:
    """Serve the hub to other processes; returns the address that they connect to."""

    class Server(BaseManager):
        pass

    Server.register("hub", callable=lambda: hub)
    server = Server(address=("127.0.0.1", 0), authkey=b"recorded").get_server()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server.address


def connect(address: Any) -> Any:
    """The hub that is served at this address, for any thread of a rank process."""
    manager = _Manager(address=address, authkey=b"recorded")
    multiprocessing.current_process().authkey = b"recorded"
    manager.connect()
    return manager.hub()  # type: ignore[attr-defined]


def schedule_of(run: Path) -> Schedule:
    """The schedule of a run directory."""
    from dspark_train.data.dataset import Dataset

    resolved = Resolved.model_validate_json((run / "resolved.json").read_text())
    return Schedule(ScheduleSpec.of(resolved.topology, Dataset.open(resolved.topology.data.path).lengths))


@dataclass
class Outcome:
    """What a rank process reports: its last state and error, and what each join answered or raised."""

    state: str
    error: str
    joins: list[Any]
    figures: dict[str, Any]


def rank_process(address: Any, run: str, rank: int, joins: Sequence[Join], num_ranks: int, results: Any) -> None:
    """The body of one rank process: for each join that it is part of, join and, if that succeeds, train to the end."""
    import asyncio
    import logging

    from dspark_train.data.dataset import Dataset
    from dspark_train.trainer.rank import Rank

    logging.basicConfig(filename=f"{run}/rank-{rank}.log", level=logging.INFO)
    hub = connect(address)
    resolved = Resolved.model_validate_json((Path(run) / "resolved.json").read_text())
    client = InMemoryServer().client(SEGMENT_BYTES)
    tokens = Dataset.open(resolved.topology.data.path)
    peers = HubPeers(hub, tokens, client.put, num_layers=resolved.num_layers_stored)
    member = Rank(run, f"rank-{rank}", peers, store=client)
    member.start({"n": "127.0.0.1"}, {})
    answers: list[Any] = []
    for join in joins:
        if rank >= join.world_size:
            continue
        if rank == 0:
            hub.call("begin", join, member.reserve_rendezvous()[1])
        unit, port = wait_for(partial(hub.call, "group", join.generation))
        spec = GroupSpec(join.generation, join.world_size, rank, "127.0.0.1", port, unit, join.resume_step)
        try:
            answers.append(member.join(spec))
            wait_for(lambda: asyncio.run(member.status())["state"] != "training")
        except (DSparkError, RuntimeError) as error:
            answers.append(str(error))
    status = asyncio.run(member.status())
    results.put((rank, Outcome(status["state"], status["error"], answers, status)))
    hub.call("leave", num_ranks)
    member.stop(5)


def wait_for(look: Callable[[], Any]) -> Any:
    """What ``look`` gives once it is true. Raises AssertionError after the deadline."""
    deadline_s = time.monotonic() + DEADLINE_S
    while not (found := look()):
        assert time.monotonic() < deadline_s, "waited too long"
        time.sleep(0.01)
    return found


_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["dspark_train.trainer.course", "tests.trainer.recorded"])


def train(run: Path, hub: Hub, joins: Sequence[Join]) -> list[Outcome]:
    """Train a run directory with as many rank processes as the largest group has; returns their outcomes by rank."""
    num_ranks = max(join.world_size for join in joins)
    address = serve(hub)
    results = _CONTEXT.Queue()
    processes = [
        _CONTEXT.Process(target=rank_process, args=(address, str(run), rank, joins, num_ranks, results), daemon=True)
        for rank in range(num_ranks)
    ]
    for process in processes:
        process.start()
    try:
        outcomes = dict(results.get(timeout=2 * DEADLINE_S) for _ in processes)
        for process in processes:
            process.join(DEADLINE_S)
    finally:
        for process in processes:
            if process.is_alive():
                process.kill()
    return [outcomes[rank] for rank in range(num_ranks)]
