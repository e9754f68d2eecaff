"""The member "rank-i": one trainer process, from its start to its end.

Owns the order of things: start, join a group, train in a thread, move to the next group, leave, stop. What is slow to
import is imported in `start`, so that the member answers at once.
"""

from __future__ import annotations

import hashlib
import logging
import os
import threading
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dspark_train.errors import DSparkError, StartError
from dspark_train.peers import Peers
from dspark_train.plan.run_layout import RunLayout
from dspark_train.plan.spec import Plan
from dspark_train.store.protocol import StoreClient
from dspark_train.topology.resolve import Resolved
from dspark_train.trainer.group import GroupBroken, GroupSpec

if TYPE_CHECKING:
    from dspark_train.trainer.course import Course
    from dspark_train.trainer.parts import Parts
    from dspark_train.trainer.process_group import Rendezvous

STOP_GRACE_S = 10.0
"""What the training thread of an old group gets to end when a new one is joined."""
HALT_LOOK_S = 0.05
"""How often `halt` looks whether a group that is being joined can be cut by now."""


class Rank:
    """One rank of the trainer group. Methods may be called from any thread; `join` one at a time."""

    def __init__(self, run_dir: str, name: str, peers: Peers, store: StoreClient | None = None) -> None:
        """store: the connection to use; None opens Mooncake as the topology says."""
        self._layout = RunLayout(Path(run_dir))
        self._name, self._peers, self._given_store = name, peers, store
        self._resolved = Resolved.model_validate_json(self._layout.resolved.read_text(encoding="utf-8"))
        self._log = logging.getLogger(f"dspark_train.{name}")
        self._joining = threading.Lock()
        self._address = "127.0.0.1"
        self._parts: Parts | None = None
        self._rendezvous: Rendezvous | None = None
        self._course: Course | None = None
        self._expected: GroupSpec | None = None
        self._is_between = False
        self._unit_end_s: float | None = None
        self._pause_s: float | None = None
        self._state, self._error = "starting", ""

    def start(self, hosts: Mapping[str, str], ports: Mapping[str, int]) -> dict[str, Any]:
        """Open the data set, build the draft, connect to the store with a segment of this rank's own.

        hosts: planned node -> address; ports: "process.name" -> number. Returns {"segment", "capacity_bytes", "pid",
        "address"}. Raises DataError, StartError, StoreError.
        """
        from dspark_train.trainer.parts import build_parts

        plan = Plan.model_validate_json(self._layout.plan.read_text(encoding="utf-8"))
        self._address = hosts[plan.process(self._name).node]
        needs_master = self._given_store is None and self._resolved.mode == "online"
        master = f"{hosts[plan.process('master').node]}:{ports['master.rpc']}" if needs_master else ""
        self._parts = build_parts(self._resolved, lambda: self._open_store(master), self._log)
        self._state = "ready"
        return {
            "segment": self._parts.store.segment,
            "capacity_bytes": self._resolved.segment_bytes,
            "pid": os.getpid(),
            "address": self._address,
        }

    def reserve_rendezvous(self) -> tuple[str, int]:
        """Serve the rendezvous of the next group from here: its address, and its port, which is bound already."""
        from dspark_train.trainer.process_group import Rendezvous

        self._rendezvous = Rendezvous(self._resolved.topology.trainers.group_timeout_s)
        return self._address, self._rendezvous.port

    def warm(self) -> None:
        """Do what is slow the first time before anyone waits for this rank. Twice is fine; a sharded draft only later.

        Changes no weight and no random draw. Not while it trains: then there is nothing to do.
        """
        from dspark_train.trainer.warm import warm

        assert self._parts is not None, "the rank was not started"
        with self._joining:
            if self._parts.is_warm or self._course is not None or self._parts.is_sharded:
                return
            warm(self._parts.state or self._parts.fresh_state(), self._parts.shape)
            self._parts.is_warm = True

    def join(self, spec: GroupSpec) -> dict[str, int]:
        """Leave the old group, form this one, get the state, and start to train.

        Returns {"resumed_step"}. Raises StartError where the group does not form, CheckpointError, on every rank alike,
        where the checkpoint of ``spec.resume_step`` does not load: the rank can then join again with an older one.
        A rank that has moved to this generation by itself already stays in it.
        """
        self._expected = None
        with self._joining:
            course = self._course
            if course is not None and course.spec.generation == spec.generation and self._state == "training":
                return {"resumed_step": int(course.figures()["step"])}
            if not self._leave(STOP_GRACE_S):
                raise StartError(f"{self._name} still trains in its old group; see its log, and start it anew")
            course, resumed_step = self._enter(spec)
            self._state, self._error = "training", ""
            threading.Thread(target=self._train, args=(course,), name="train", daemon=True).start()
        return {"resumed_step": resumed_step}

    def expect(self, spec: GroupSpec) -> None:
        """Move to this group by itself, as soon as the ledger ends the present one with "regroup"."""
        self._expected = spec
        course = self._course
        if self._is_between and course is not None:  # the end came first
            threading.Thread(target=self._move, args=(course,), name="train", daemon=True).start()

    def halt(self, grace_s: float) -> dict[str, Any]:
        """Leave the group now, and keep weights and optimizer state in memory. Twice is fine, and without a group.

        Returns {"ended": whether training and fetching ended in time, else the rank must be replaced; "step": optimizer
        steps in memory, None where there is no state; "uncommitted": the `Commit` of the last unit in it, where the
        ledger may not have it, else None}.
        """
        self._expected = None
        limit_s = time.monotonic() + grace_s
        while not self._joining.acquire(timeout=HALT_LOOK_S):
            # It may be joining a group: cut short as well.
            if (course := self._course) is not None:
                course.cut()
            if time.monotonic() > limit_s:
                return {"ended": False, "step": None, "uncommitted": None}
        try:
            ended = self._leave(max(HALT_LOOK_S, limit_s - time.monotonic()))
            if self._state not in ("starting", "failed"):
                self._state, self._error = "ready", ""
            parts = self._parts
            state = parts.state if parts is not None else None
            return {
                "ended": ended,
                "step": parts.step_in_memory if parts is not None else None,
                "uncommitted": state.uncommitted if state is not None else None,
            }
        finally:
            self._joining.release()

    def clear_store(self, prefix: str) -> int:
        """Remove every object whose key begins with ``prefix``: leftovers of an earlier ledger. Returns how many.

        Raises StoreError.
        """
        assert self._parts is not None, "the rank was not started"
        return self._parts.store.remove_prefix(prefix)

    async def status(self) -> dict[str, Any]:
        """{"state": "starting|ready|training|broken|stopped|done|failed", "unit", "step", "wait_s", "fetch_s",
        "busy_s", "tokens", "error", "fault", "num_lost", "checkpoint_step", "checkpoint_at_s", "checkpoint_error",
        "generation", "pause_s", "pid"}.

        broken: its group broke; the rank itself is well, keeps its state, and waits for `halt` and `join`. error: why
        it failed or the group broke; fault: what is being waited out now; tokens: trained by this rank since it joined;
        generation: that it trains in, or, while "ready", waits for, 0 for none; pause_s: from the end of the last unit
        of the generation before to being ready for the first of this one, None at first.
        """
        course = self._course
        figures = course.figures() if course is not None else {}
        idle = {
            "unit": 0,
            "step": 0,
            "tokens": 0,
            "wait_s": 0.0,
            "fetch_s": 0.0,
            "busy_s": 0.0,
            "checkpoint_step": None,
            "checkpoint_at_s": None,
        }
        own = {
            "state": self._state,
            "pid": os.getpid(),
            "error": self._error,
            "generation": 0 if course is None or course.is_left else course.spec.generation,
            "pause_s": self._pause_s,
        }
        return {**idle, **figures, **own}

    def stop(self, grace_s: float) -> None:
        """End training and leave group and store. Twice is fine."""
        self._expected = None
        with self._joining:
            ended = self._leave(grace_s)
            if self._parts is not None and ended:
                self._parts.settle()
                self._parts.drop_ring()
            if self._parts is not None and self._given_store is None:
                self._parts.store.close()
            if self._state in ("starting", "ready", "training", "broken"):
                self._state = "stopped"

    # -- inside ------------------------------------------------------------------------------------------------------

    def _train(self, course: Course) -> None:
        """Train in this group, and in those that follow it without a word from outside."""
        following: Course | None = course
        while following is not None:
            following = self._next(following) if self._trained(following) else None

    def _trained(self, course: Course) -> bool:
        """Train in one group; whether that ended in order, with this group still being the rank's."""
        try:
            end = course.train()
        except GroupBroken as error:
            self._fail(course, "broken", str(error))
        except DSparkError as error:
            self._fail(course, "failed", str(error))
        except Exception as error:  # noqa: BLE001 - whatever ends training must show in the status, not vanish
            self._fail(course, "failed", f"internal error: {type(error).__name__}: {error}")
            self._log.error("%s", traceback.format_exc())
        else:
            self._log.info("training ended: %s", end)
            with self._joining:
                if course is not self._course:
                    return False
                self._is_between = end == "regroup"
                if not self._is_between or self._expected is None:
                    self._state = {"regroup": "ready", "halted": "ready"}.get(end, end)
            return True
        return False

    def _move(self, course: Course) -> None:
        following = self._next(course)
        if following is not None:
            self._train(following)

    def _next(self, course: Course) -> Course | None:
        """Join the expected group after a "regroup"; None where there is none, or it does not form."""
        with self._joining:
            spec = self._expected
            if course is not self._course or not self._is_between or spec is None:
                return None
            self._expected = None
            self._keep_time(course)
            try:
                following, _ = self._enter(spec)
                self._state = "training"
                return following
            except (DSparkError, RuntimeError) as error:
                self._state, self._error = "broken", f"{self._name}: {error}"
                self._log.error("%s", error)
                return None

    def _enter(self, spec: GroupSpec) -> tuple[Course, int]:
        """Form this group; no other is left to leave. Returns it, and the step that it goes on from."""
        from dspark_train.trainer.course import Course

        assert self._parts is not None, "the rank was not started"
        served = None
        if spec.rank == 0:
            served, self._rendezvous = self._rendezvous, None
        self._is_between = False
        digest, stays_first = self._config_digest(), lambda: self._expected is not None and self._expected.rank == 0
        self._course = Course(self._parts, spec, self._name, self._peers, self._layout, digest, served, stays_first)
        self._state = "ready"  # waits in this generation: nobody is to send it there again
        step = self._course.prepare(self._address)
        if self._unit_end_s is not None:
            self._pause_s = round(time.monotonic() - self._unit_end_s, 4)
        return self._course, step

    def _fail(self, course: Course, state: str, error: str) -> None:
        self._log.error("%s", error)
        if course is self._course:
            self._state, self._error = state, f"{self._name}: {error}"
        course.cut()

    def _leave(self, grace_s: float) -> bool:
        course, self._course = self._course, None
        self._is_between = False
        if course is None:
            return True
        self._keep_time(course)
        return course.leave(grace_s)

    def _keep_time(self, course: Course) -> None:
        if course.unit_end_s is not None:
            self._unit_end_s = course.unit_end_s

    def _open_store(self, master: str) -> StoreClient:
        from dspark_train.trainer.parts import connect_store

        return self._given_store or connect_store(self._resolved, self._name, self._address, master)

    def _config_digest(self) -> str:
        return hashlib.sha256(self._layout.resolved.read_bytes()).hexdigest()
