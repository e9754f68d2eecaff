"""One side of a run in this process, without Ray: run directory, ledger, store master, and calls between them."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Protocol, TypeVar

from dspark_train.controller.ledger_service import LedgerService
from dspark_train.errors import PeerTimeout
from dspark_train.plan.run_layout import RunLayout
from dspark_train.plan.spec import Plan
from dspark_train.schedule.messages import Member
from dspark_train.store.master import Master
from dspark_train.topology.resolve import Resolved

T = TypeVar("T")
LOOPBACK = "127.0.0.1"
ENGINE_CORE, TRAINER_CORE = 0, 1
RAY_NICENESS = 15
"""At which Ray runs its workers: on a busy machine it decides how much of a core is left."""
CALL_TIMEOUT_S = 60.0
STOP_GRACE_S = 5.0
GENERATION = 1


class Run(Protocol):
    """Runs a coroutine where the ledger lives, and waits."""

    def __call__(self, coroutine: Coroutine[Any, Any, T]) -> T: ...


def pin(core: int) -> None:
    """Keep this process, and all that it starts from now on, on one core; on any where there is none of that number."""
    if core in os.sched_getaffinity(0):
        os.sched_setaffinity(0, {core})


def be_worker(core: int) -> None:
    """As `pin`, and at the priority of Ray's workers: what a member has in a run. To be called before threads begin."""
    pin(core)
    os.setpriority(os.PRIO_PROCESS, 0, RAY_NICENESS)


@contextmanager
def pinned(core: int) -> Iterator[None]:
    """Keep this thread on one core for a while, and what it starts meanwhile for good."""
    before = os.sched_getaffinity(0)
    pin(core)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def write_run(root: Path, resolved: Resolved, plan: Plan) -> RunLayout:
    """The files that members read."""
    layout = RunLayout(root)
    layout.logs.mkdir(parents=True, exist_ok=True)
    layout.resolved.write_text(resolved.model_dump_json(), encoding="utf-8")
    layout.plan.write_text(plan.model_dump_json(), encoding="utf-8")
    return layout


class Side:
    """Master and ledger of a run directory. Members call the ledger through it, as their `Peers`. Close it."""

    def __init__(self, run_dir: str) -> None:
        self.layout = RunLayout(Path(run_dir))
        self.resolved = Resolved.model_validate_json(self.layout.resolved.read_text(encoding="utf-8"))
        plan = Plan.model_validate_json(self.layout.plan.read_text(encoding="utf-8"))
        self.hosts = {node.name: LOOPBACK for node in plan.nodes}
        self._stack = ExitStack()
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="ledger", daemon=True).start()
        master = Master(run_dir, self)
        self.ports = {f"master.{name}": port for name, port in master.reserve_ports().items()}
        self._stack.callback(master.stop, STOP_GRACE_S)
        self.rpc = master.start(self.hosts, self.ports)["rpc"]
        self.ledger = LedgerService(run_dir, 0)

    def begin(self, segment: str) -> None:
        """Let leases begin, with one rank that owns ``segment``."""
        member = Member("rank-0", segment, self.resolved.segment_bytes)
        self.run(self.ledger.set_group([member], GENERATION))
        self.run(self.ledger.run())

    def run(self, coroutine: Coroutine[Any, Any, T], timeout_s: float = CALL_TIMEOUT_S) -> T:
        """Run it in the event loop of ledger and feeder, and wait."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(timeout_s)

    def call(self, name: str, method: str, *args: Any, timeout_s: float) -> Any:
        """See `Peers`. There is only the ledger."""
        assert name == "ledger", name
        return self.run(getattr(self.ledger, method)(*args), timeout_s)

    async def acall(self, name: str, method: str, *args: Any, timeout_s: float) -> Any:
        """See `Peers`; for coroutines in the same event loop."""
        assert name == "ledger", name
        try:
            async with asyncio.timeout(timeout_s):
                return await getattr(self.ledger, method)(*args)
        except TimeoutError as error:
            raise PeerTimeout(f"{name}.{method}") from error

    def close(self) -> None:
        """End the master, and the ledger's files."""
        self.run(self.ledger.stop())
        self._stack.close()
