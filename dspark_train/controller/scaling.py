"""Changes of the pools' sizes as transactions: ordered, followed to their end, rolled back when a start fails.

One at a time. An order changes what is wanted; the pools close the gap tick by tick; here it is seen how that goes.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from dspark_train.controller.board import now_text
from dspark_train.controller.context import RunContext
from dspark_train.controller.draining import Change, change, find_nodes
from dspark_train.controller.engine_pool import EnginePool
from dspark_train.controller.roster import POOLS, Pool, Transaction
from dspark_train.controller.targets import target
from dspark_train.controller.trainer_pool import TrainerPool
from dspark_train.errors import DSparkError
from dspark_train.plan.growth import KINDS, engine_of, member_names
from dspark_train.plan.spec import Plan

SPARE_S = 120.0
"""Beyond the sum of the members' own time-outs."""


class Busy(DSparkError):
    """Another transaction is running."""


class Scaling:
    """See the module. `order` may be called from any thread, `tick` from the controller's alone."""

    def __init__(self, context: RunContext) -> None:
        self._resolved, self._board, self._roster = context.resolved, context.board, context.roster
        self._places = context.places
        self._save, self._plan, self._set_plan = context.save, context.plan, context.set_plan
        self._lock = threading.Lock()
        self._began_s: float | None = None
        self._is_new = False

    def order(
        self,
        orders: Mapping[Pool, str],
        *,
        drain: Iterable[str] = (),
        undrain: Iterable[str] = (),
        dry_run: bool,
        last_pause_s: float | None,
        by_hand: bool = True,
    ) -> dict[str, Any]:
        """Begin a transaction, or with ``dry_run`` say what it would do. Returns it, with "starts" and "stops".

        orders: pool -> "+1", "-1" or "3". drain: nodes (address, id or planned name) that everything is to leave, and
        on which nothing starts until they are in ``undrain``. by_hand: pools that are ordered are pinned, so that the
        balance leaves them alone. Raises UsageError, TopologyError, ClusterError or Busy; nothing is changed then.
        """
        with self._lock:
            now, topology = self._roster.num_desired, self._resolved.topology
            wanted = {pool: target(pool, now[pool], text, topology) for pool, text in orders.items()}
            last = self._roster.transaction
            if last is not None and last.state == "running":
                raise Busy(
                    f"transaction {last.id} ({last.text()}) is still {last.phase or 'running'}: wait for its end"
                )
            places, roster = self._places, self._roster
            nodes = places.in_cluster()
            drains = find_nodes(drain, places.bound, nodes, {})
            opened = find_nodes(undrain, places.bound, nodes, roster.drained)
            drained = {ident: at for ident, at in {**roster.drained, **drains}.items() if ident not in opened}
            usable = [node for node in places.answering() if node.id not in drained]
            plan = self._plan()
            found = change(plan, self._resolved, roster, places.bound, usable, {**now, **wanted}, drained)
            made = Transaction(
                id=f"t{roster.num_transactions + 1}",
                num_from={pool: now[pool] for pool in wanted},
                num_to=wanted,
                drains={ident: at for ident, at in drains.items() if ident not in roster.drained},
                retires=found.retires,
                moves=found.moves,
                started_at=now_text(),
            )
            changes = _changes(found, self._running(now), self._running({**now, **wanted}, found))
            is_so = wanted == made.num_from and not made.drains and not opened
            if not dry_run and is_so:
                made.state, made.reason, made.pause_s = "done", "it is so already", 0.0
            elif not dry_run:
                places.adopt(found.bound)
                self._begin(made, found.plan, drained, by_hand)
            return {**made.model_dump(), **changes, "dry_run": dry_run, **_expected(made, last_pause_s)}

    def _running(self, num: Mapping[Pool, int], found: Change | None = None) -> set[str]:
        """Names of all who are meant to run, by now or after a change."""
        retired = [*self._roster.retired, *(found.retires if found is not None else ())]
        return {name for kind in KINDS for name in member_names(kind, num[POOLS[kind]], retired)}

    def _begin(self, made: Transaction, plan: Plan, drained: Mapping[str, str], by_hand: bool) -> None:
        self._set_plan(plan)
        roster = self._roster
        running = self._running(roster.num_desired)
        for address in made.drains.values():
            who = [name for name in (*made.retires, *made.moves) if name in running]
            text = f"{address} is drained: {', '.join(who) + ' leave it' if who else 'nothing of the run is on it'}"
            self._board.event("node.draining", "controller", text)
        for ident in roster.drained.keys() - drained.keys():
            self._board.event("node.opened", "controller", f"{roster.drained[ident]} may be used again")
        roster.drained, roster.retired = dict(drained), [*roster.retired, *made.retires]
        roster.num_transactions += 1
        roster.transaction = made
        roster.num_desired = {**roster.num_desired, **made.num_to}
        if by_hand:
            roster.pinned = {**roster.pinned, **dict.fromkeys(made.num_to, True)}
        self._is_new = True
        self._save()
        self._board.event("scale.begun", "controller", f"{made.id}: {made.text()}", id=made.id)

    def tick(self, now_s: float, engines: EnginePool, trainers: TrainerPool) -> Transaction | None:
        """Look how far the transaction is; end it, well or badly. Returns it where it was rolled back now."""
        with self._lock:
            made = self._roster.transaction
            if made is None or made.state != "running":
                return None
            if self._is_new or self._began_s is None:
                self._is_new, self._began_s = False, now_s
                engines.forgive(self._roster.num_desired["inference"])
                trainers.forgive(self._roster.num_desired["trainers"])
            wanted = self._roster.num_desired
            if engines.is_settled(wanted["inference"]) and trainers.is_settled(wanted["trainers"]):
                made.pause_s = trainers.last_pause_s if _changes_ranks(made) else 0.0
                self._end(made, "done", "")
            elif reason := self._failure(made, engines, trainers) or self._overdue(now_s):
                self._roll_back(made, reason, trainers)
                return made
            else:
                self._note_phase(made, trainers)
            return None

    def _failure(self, made: Transaction, engines: EnginePool, trainers: TrainerPool) -> str:
        """Why a member that this transaction adds did not come up."""
        retired = [name for name in self._roster.retired if name not in made.retires]
        num_before = {**self._roster.num_desired, **made.num_from}
        known = member_names("engine", num_before["inference"], retired)
        for name, why in engines.failed_starts.items():
            if name not in known or name in made.moves:
                return f"{name} did not start: {why}"
        adds_ranks = made.num_to.get("trainers", 0) > num_before["trainers"]
        if adds_ranks or any(name.startswith("rank-") for name in made.retires):
            for name, why in trainers.failed_starts.items():
                return f"{name} did not start: {why}"
        return ""

    def _overdue(self, now_s: float) -> str:
        topology = self._resolved.topology
        limit_s = topology.engines.start_timeout_s + topology.engines.request_timeout_s + SPARE_S
        limit_s += topology.trainers.start_timeout_s + topology.trainers.group_timeout_s
        if self._began_s is None or now_s - self._began_s <= limit_s:
            return ""
        return f"not settled within {limit_s:.0f} s"

    def _roll_back(self, made: Transaction, reason: str, trainers: TrainerPool) -> None:
        roster = self._roster
        roster.num_desired = {**roster.num_desired, **made.num_from}
        roster.retired = [name for name in roster.retired if name not in made.retires]
        roster.drained = {ident: at for ident, at in roster.drained.items() if ident not in made.drains}
        if trainers.resize is None:
            trainers.drop_joiners()
        self._end(made, "rolled back", reason)

    def _end(self, made: Transaction, state: str, reason: str) -> None:
        made = made.model_copy(update={"state": state, "reason": reason, "phase": "", "ended_at": now_text()})
        self._roster.transaction = made
        self._began_s = None
        self._save()
        kind = "scale.done" if state == "done" else "scale.rolled_back"
        text = f"{made.id}: {made.text()} {state}" + (f": {reason}" if reason else "")
        self._board.event(kind, "controller", text, id=made.id, pause_s=made.pause_s)

    def _note_phase(self, made: Transaction, trainers: TrainerPool) -> None:
        phase = "switching ranks at the boundary" if trainers.resize is not None else "starting or draining members"
        if phase != made.phase:
            made.phase = phase
            self._board.event("scale.phase", "controller", f"{made.id}: {phase}", id=made.id)


def _changes(found: Change, now: Collection[str], after: Collection[str]) -> dict[str, Any]:
    """The processes that come and go. Ranks that go are the last of the group, which may not be the last by name."""

    def shown(names: Iterable[str]) -> list[dict[str, str]]:
        return [{"name": p.name, "node": p.node} for p in found.plan.processes if engine_of(p.name) in names]

    comes, goes = set(after) - set(now), set(now) - set(after)
    return {"starts": shown(comes | set(found.moves)), "stops": shown(goes | set(found.moves))}


def _expected(made: Transaction, last_pause_s: float | None) -> dict[str, float | None]:
    """The pause of training: none without ranks that change; the last one measured, where there was one."""
    return {"expected_pause_s": last_pause_s if _changes_ranks(made) else 0.0, "predicted_tokens_per_s": None}


def _changes_ranks(made: Transaction) -> bool:
    is_other_num = made.num_to.get("trainers") != made.num_from.get("trainers")
    return is_other_num or any(name.startswith("rank-") for name in made.retires)
