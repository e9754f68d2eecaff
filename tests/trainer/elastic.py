"""Rank processes that a test steers as the controller does: formed, resized, killed, stopped, formed again."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.managers import BaseManager
from pathlib import Path
from typing import Any

from dspark_train.schedule.messages import Commit, Member
from dspark_train.trainer.group import GroupSpec
from tests.trainer.recorded import _CONTEXT, SEGMENT_BYTES, Hub, HubPeers, connect, serve, wait_for

KEY = b"recorded"
CALL_S = 60.0


@dataclass(frozen=True)
class Fault:
    """A rank's end. It comes in its state's method ("exchange_gradients", "advance") of this step."""

    method: str
    step: int
    sign: signal.Signals = signal.SIGKILL


@dataclass
class ElasticHub(Hub):
    """One ledger all along, for one group after another."""

    hold_commit_of_unit: int | None = None
    """The commit of this unit is neither taken nor answered, as if the ledger were far away."""
    num_held: int = 0

    def _set_group(self, names: Sequence[str], generation: int) -> int:
        unit = self._ledger.set_group(_members(names), generation)
        self._ledger.run()
        return unit

    def _announce_group(self, names: Sequence[str], generation: int, then_withhold: int | None) -> int:
        """Fix the unit, and let samples come again, up to the next unit to be withheld."""
        unit = self._ledger.announce_group(_members(names), generation)
        self.withhold_from_unit = then_withhold
        return unit

    def _resume(self, first_unit: int) -> None:
        """The ledger begins again there, as after its restart from a checkpoint."""
        self._ledger = self._new_ledger(first_unit)
        self.commits = [commit for commit in self.commits if commit.unit < first_unit]

    def _adopt(self, commit: Commit) -> bool:
        if self._ledger.adopt(commit.unit) is None:
            return False
        self.commits.append(commit)
        return True

    def _commit(self, commit: Commit) -> bool:
        if commit.unit == self.hold_commit_of_unit:
            self.num_held += 1
            self._changed.wait_for(lambda: self.hold_commit_of_unit is None, CALL_S)
            return False
        return super()._commit(commit)


def _members(names: Sequence[str]) -> list[Member]:
    return [Member(name, name, SEGMENT_BYTES) for name in names]


class Face:
    """A rank as a remote controller sees it."""

    def __init__(self, rank: Any) -> None:
        self._rank = rank

    def call(self, method: str, *args: Any) -> Any:
        result = getattr(self._rank, method)(*args)
        return asyncio.run(result) if asyncio.iscoroutine(result) else result


class _Steered(BaseManager):
    pass


_Steered.register("face")


def steered_process(hub_address: Any, run: str, name: str, fault: Fault | None, addresses: Any) -> None:
    """The body of one rank process: start, then do what is asked, for ever."""
    import logging

    from dspark_train.data.dataset import Dataset
    from dspark_train.store.in_memory import InMemoryServer
    from dspark_train.topology.resolve import Resolved
    from dspark_train.trainer.rank import Rank

    logging.basicConfig(
        filename=f"{run}/{name}.log", level=logging.INFO, format="%(asctime)s %(threadName)s %(message)s"
    )
    multiprocessing.current_process().authkey = KEY
    resolved = Resolved.model_validate_json((Path(run) / "resolved.json").read_text())
    client = InMemoryServer().client(SEGMENT_BYTES)
    peers = HubPeers(connect(hub_address), Dataset.open(resolved.topology.data.path), client.put)
    rank = Rank(run, name, peers, store=client)
    rank.start({"n": "127.0.0.1"}, {})
    if fault is not None:
        _arm(fault)

    class Server(BaseManager):
        pass

    face = Face(rank)
    Server.register("face", callable=lambda: face)
    server = Server(address=("127.0.0.1", 0), authkey=KEY).get_server()
    addresses.put((name, server.address))
    server.serve_forever()


def _arm(fault: Fault) -> None:
    from dspark_train.trainer.state import TrainState

    real = getattr(TrainState, fault.method)

    def faulty(state: Any, *args: Any) -> Any:
        if state.step == fault.step - 1:
            os.kill(os.getpid(), fault.sign)
        return real(state, *args)

    setattr(TrainState, fault.method, faulty)


class Steered:
    """One rank process."""

    def __init__(self, process: Any, address: Any) -> None:
        self.process = process
        manager = _Steered(address=address, authkey=KEY)
        manager.connect()
        self._face = manager.face()  # type: ignore[attr-defined]

    def call(self, method: str, *args: Any) -> Any:
        return self._face.call(method, *args)

    @property
    def status(self) -> dict[str, Any]:
        return dict(self.call("status"))

    def signal(self, sign: signal.Signals) -> None:
        os.kill(self.process.pid, sign)


class Steering:
    """What the controller does, by hand. Use as a context: it ends every process."""

    def __init__(self, run: Path, hub: ElasticHub, num_ranks: int, faults: dict[int, Fault] | None = None) -> None:
        self.hub, self.generation = hub, 0
        multiprocessing.current_process().authkey = KEY
        addresses, hub_address = _CONTEXT.Queue(), serve(hub)
        self._processes = {
            f"rank-{i}": _CONTEXT.Process(
                target=steered_process,
                args=(hub_address, str(run), f"rank-{i}", (faults or {}).get(i), addresses),
                daemon=True,
            )
            for i in range(num_ranks)
        }
        for process in self._processes.values():
            process.start()
        found = dict(addresses.get(timeout=CALL_S) for _ in self._processes)
        self.ranks = [Steered(process, found[name]) for name, process in self._processes.items()]

    def __enter__(self) -> Steering:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes.values():
            process.kill()
            process.join(CALL_S)

    def form(self, *members: int, resume_step: int | None = None) -> list[Any]:
        """Have these join a group from the ledger's next unit on; the first is its rank 0. Returns their answers."""
        self.generation += 1
        unit = self.hub.call("set_group", [f"rank-{i}" for i in members], self.generation)
        specs = self._specs(members, unit, resume_step)
        return together([lambda i=i: self.ranks[i].call("join", specs[i]) for i in members])

    def resize(self, old: Sequence[int], new: Sequence[int], then_withhold: int | None = None) -> int:
        """Announce a group and see to it that it forms. Returns its first unit once it trains."""
        joiners = [i for i in new if i not in old]
        together([lambda i=i: self.ranks[i].call("warm") for i in joiners])
        self.generation += 1
        names = [f"rank-{i}" for i in new]
        unit = int(self.hub.call("announce_group", names, self.generation, then_withhold))
        specs = self._specs(new, unit, None)
        for i in new:
            if i in old:
                self.ranks[i].call("expect", specs[i])
        together([lambda i=i: self.ranks[i].call("join", specs[i]) for i in joiners])
        wait_for(lambda: all(self._is_in(i) for i in new))
        return unit

    def _is_in(self, rank: int) -> bool:
        """Whether a rank is in the newest group, or at its end already."""
        status = self.ranks[rank].status
        assert status["state"] not in ("failed", "broken"), status
        return (status["generation"] == self.generation and status["state"] != "ready") or status["state"] == "done"

    def heal(self, survivors: Sequence[int], answers: Sequence[dict[str, Any]]) -> list[Any]:
        """Form a group of those that were halted, with one of the most steps as rank 0; what it has done counts."""
        done = dict(zip(survivors, answers, strict=True))
        first = max(survivors, key=lambda i: done[i]["step"])
        members = [first, *(i for i in survivors if i != first)]
        if (commit := done[first]["uncommitted"]) is not None:
            self.hub.call("set_group", [f"rank-{i}" for i in members], self.generation + 1)
            self.hub.call("adopt", commit)
        return self.form(*members)

    def wait_for_stop(self, rank: int) -> None:
        """Until the process is stopped by a signal."""
        stat = Path(f"/proc/{self.ranks[rank].process.pid}/stat")
        wait_for(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T")

    def _specs(self, members: Sequence[int], unit: int, resume_step: int | None) -> dict[int, GroupSpec]:
        address, port = self.ranks[members[0]].call("reserve_rendezvous")
        size = len(members)
        return {
            i: GroupSpec(self.generation, size, rank, address, port, unit, resume_step)
            for rank, i in enumerate(members)
        }

    def wait_until(self, members: Sequence[int], state: str) -> float:
        """Seconds until all of these are in this state."""
        began_s = time.monotonic()
        wait_for(lambda: all(self.ranks[i].status["state"] == state for i in members))
        return time.monotonic() - began_s

    def halt(self, *members: int, grace_s: float = 5.0) -> tuple[list[dict[str, Any]], float]:
        """Halt these side by side: their answers, and the seconds that took."""
        began_s = time.monotonic()
        answers = together([lambda i=i: self.ranks[i].call("halt", grace_s) for i in members])
        return answers, time.monotonic() - began_s


def together(calls: Sequence[Callable[[], Any]]) -> list[Any]:
    """Make the calls at once; their results in order. Raises the first error."""
    results: list[Any] = [None] * len(calls)
    errors: list[BaseException] = []

    def run(index: int) -> None:
        try:
            results[index] = calls[index]()
        except BaseException as error:  # noqa: BLE001 - raised below
            errors.append(error)

    threads = [threading.Thread(target=run, args=(index,)) for index in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(CALL_S)
    if errors:
        raise errors[0]
    return results
