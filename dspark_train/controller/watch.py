"""The run while it goes on: each tick looks at everything once, mends what broke, and lets the pools close their gaps.

Wires the pools, the recovery and the transactions together; decides only in which order they act.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping

from dspark_train.controller.balancing import Balancing
from dspark_train.controller.context import RunContext
from dspark_train.controller.crew import ASK_TIMEOUT_S, CREATE_TIMEOUT_S
from dspark_train.controller.drain_watch import DrainWatch
from dspark_train.controller.engine_pool import EnginePool
from dspark_train.controller.hearing import Hearing, Status
from dspark_train.controller.recovery import Recovery
from dspark_train.controller.scaling import Scaling
from dspark_train.controller.show import Show
from dspark_train.controller.stall import StallWatch, least_s
from dspark_train.controller.trainer_pool import TrainerPool
from dspark_train.errors import DSparkError, PeerError, PeerLost, StartError
from dspark_train.schedule.messages import LedgerView

MAX_REGROUPS_AT_ONE_UNIT = 8
MAX_TOTAL_LOSSES_AT_ONE_UNIT = 2
"""So often the group may break, or lose every rank, at one and the same unit before the run is given up."""
BROKEN_GRACE_S = 3.0
"""How long a group may say that it broke before it is known who died."""
NEEDED = ("failed", "dead")


class RunFailed(DSparkError):
    """The run cannot go on."""


class Watch:
    """See the module. `begin` once everything is up, then `tick` until `ended` says how it ended."""

    def __init__(self, context: RunContext) -> None:
        self._context = context
        self._crew, self._board, self._roster = context.crew, context.board, context.roster
        self._restarts = context.restarts
        self.trainers = TrainerPool(context)
        self.engines = EnginePool(context)
        self.recovery = Recovery(context, self.trainers)
        self.scaling = Scaling(context)
        self.balancing = Balancing(context, self.scaling, self.engines, self.trainers)
        self.drains = DrainWatch(context, self.scaling)
        supervision = context.topology.supervision
        self._hearing = Hearing(supervision.silence_s)
        self._show = Show(context.board, context.roster, context.plan)
        self._stall = StallWatch(least_s(context.topology))
        self._regroups: Counter[int] = Counter()
        self._total_losses: Counter[int] = Counter()
        self._broken_since_s: float | None = None
        self._view: LedgerView | None = None
        self._checkpoint_error = ""

    # -- one tick --------------------------------------------------------------------------------------------------

    def tick(self) -> tuple[LedgerView, dict[str, Status]]:
        """Look, mend, close gaps. Returns the ledger's view and the status of the group's ranks. Raises RunFailed."""
        now_s = time.monotonic()
        view = self._look(now_s)
        names = [*self.engines.processes(), *self.trainers.members(), "master"]
        seen = self._hearing.take(now_s, self._crew.ask_all(names))
        self._show.show(now_s, view, self.engines.shown(seen), self.trainers.shown(seen), seen)
        ranks = {name: seen[name] for name in self.trainers.group}
        if view.state == "failed":
            raise RunFailed(view.reason)
        self._note_checkpoint(ranks)
        try:
            if not self._mend(now_s, view, seen, ranks):
                self._close_gaps(now_s, view, seen)
        except PeerError as error:
            # Somebody died between the look and the call: the next look tells who.
            self._board.event("tick.cut_short", "controller", str(error))
        self._check_engines()
        return view, ranks

    def _close_gaps(self, now_s: float, view: LedgerView, seen: Mapping[str, Status]) -> None:
        self.engines.tick(now_s, self._roster.num_desired["inference"], seen, view.wrong_by)
        cause = self.trainers.tick(now_s, self._roster.num_desired["trainers"], seen, view)
        if cause:
            unfit = _unfit({name: seen.get(name, {}) for name in self.trainers.members()})
            self._note_deaths(now_s, unfit)
            self._regroup(view, cause, unfit)
        ended = self.scaling.tick(now_s, self.engines, self.trainers)
        if ended and ended.num_to:
            self.balancing.rolled_back(now_s, ended.num_to)
        self.drains.tick(now_s)
        self.balancing.tick(now_s, view, seen)

    def _note_checkpoint(self, ranks: Mapping[str, Status]) -> None:
        """A checkpoint that could not be written is a fault until the next one is."""
        error = next(
            (str(status["checkpoint_error"]) for status in ranks.values() if status.get("checkpoint_error")), ""
        )
        if error and error != self._checkpoint_error:
            self._board.fault("checkpoint", "checkpoint.failed", "trainers", error)
        elif not error and self._checkpoint_error:
            self._board.heal("checkpoint")
        self._checkpoint_error = error

    def _look(self, now_s: float) -> LedgerView:
        """The ledger's view; its last one while it is silent, or cannot be mended at once."""
        try:
            return self._look_at_ledger(now_s)
        except PeerError as error:
            self._board.event("tick.cut_short", "controller", f"the ledger was not mended yet: {error}")
            if self._view is None:
                raise
            return self._view

    def _look_at_ledger(self, now_s: float) -> LedgerView:
        """Ask it; replace it where it is dead."""
        cause = ""
        try:
            self._view = self._crew.call("ledger", "view", timeout_s=ASK_TIMEOUT_S)
            self._hearing.take(now_s, {"ledger": {"state": "ready"}})
            self.recovery.key_prefix = self._view.key_prefix
        except PeerLost as error:
            cause = str(error)
        except PeerError:
            heard = self._hearing.take(now_s, {"ledger": None})["ledger"]
            cause = str(heard["error"]) if heard["state"] == "dead" else ""
        if cause or self._view is None:
            self._board.fault("ledger", "ledger.dead", "ledger", f"the ledger died: {cause}")
            self._mended("ledger", cause, lambda: self.recovery.ledger(cause))
            self._hearing.forget("ledger")
            self._view = self._crew.call("ledger", "view", timeout_s=CREATE_TIMEOUT_S)
        return self._view

    def _mend(self, now_s: float, view: LedgerView, seen: Mapping[str, Status], ranks: Mapping[str, Status]) -> bool:
        """Replace a dead master, form a broken group anew. Whether anything was done."""
        master = seen["master"]
        if master["state"] in ("dead", "hung"):
            cause = str(master.get("error") or "its process ended")
            self._board.fault("master", "store.dead", "master", f"the store's master is {master['state']}: {cause}")
            self._mended("master", cause, lambda: self.recovery.master(cause))
            self._hearing.forget("master")
            return True
        unfit = _unfit(ranks)
        if unfit and view.state in ("done", "stopped") and any(r.get("state") == "failed" for r in ranks.values()):
            raise RunFailed(f"all was trained, and {'; '.join(f'{name} {why}' for name, why in unfit.items())}")
        broken = [name for name, status in ranks.items() if self._is_adrift(status)]
        self._broken_since_s = (self._broken_since_s or now_s) if broken else None
        if not unfit and broken and self._broken_since_s is not None and now_s - self._broken_since_s < BROKEN_GRACE_S:
            return False
        cause = "; ".join(f"{name} {why}" for name, why in unfit.items())
        if not cause and broken:
            cause = f"{broken[0]}: {ranks[broken[0]].get('error') or 'it is in no group'}"
        if not cause and (stalled := self._stall.look(now_s, view, ranks)):
            cause = stalled
        if not cause or self._waits_for_nodes(now_s, unfit):
            return False
        self._note_deaths(now_s, unfit)
        self._regroup(view, cause, unfit)
        self._broken_since_s = None
        return True

    def _waits_for_nodes(self, now_s: float, unfit: Mapping[str, str]) -> bool:
        """Whether every rank is lost and there are no nodes to start them on: nothing can be done but wait."""
        if not all(name in unfit for name in self.trainers.group):
            return False
        reason = self.trainers.homeless(now_s)
        if reason and not self._board.ailing("trainers"):
            self._board.fault("trainers", "rank.waiting", "trainers", f"no rank is left, and they wait: {reason}")
        elif not reason:
            self._board.heal("trainers")
        return bool(reason)

    def _is_adrift(self, status: Status) -> bool:
        """Whether a rank of the group is not in it: it broke, or a new one did not form."""
        if status.get("state") == "broken":
            return True
        return status.get("state") == "ready" and not status.get("generation") and self.trainers.resize is None

    def _regroup(self, view: LedgerView, cause: str, unfit: Mapping[str, str]) -> None:
        self._regroups[view.unit] += 1
        self._total_losses[view.unit] += all(name in unfit for name in self.trainers.group)
        is_enough = self._regroups[view.unit] > MAX_REGROUPS_AT_ONE_UNIT
        if is_enough or self._total_losses[view.unit] > MAX_TOTAL_LOSSES_AT_ONE_UNIT:
            where = f"at unit {view.unit} (step {view.step + 1})"
            raise RunFailed(f"the trainer group broke {self._regroups[view.unit]} times {where}; the last: {cause}")
        self.recovery.regroup(cause, unfit)
        for name in unfit:
            self._hearing.forget(name)
        self._stall.reset()
        self._context.save()

    def _note_deaths(self, now_s: float, unfit: Mapping[str, str]) -> None:
        for name, why in unfit.items():
            self._restarts.died(name, now_s, why)
            self._board.fault(name, "rank.dead", name, f"{name} {why}; log: {self._board.layout.log(name)}")
            if reason := self._restarts.given_up().get(name):
                self._board.fault(name, "rank.given_up", name, reason)

    def _mended(self, what: str, cause: str, mend: Callable[[], None]) -> None:
        """Mend, and give the run up where it breaks, or does not start, again and again."""
        self._restarts.died(what, time.monotonic(), cause)
        if reason := self._restarts.given_up().get(what):
            raise RunFailed(reason)
        try:
            mend()
        except StartError as error:
            self._board.event("mend.failed", what, f"{what} did not start again: {error}")
            return
        self._context.save()
        self._board.heal(what)

    def _check_engines(self) -> None:
        given_up = [why for name, why in self._restarts.given_up().items() if name.startswith("engine-")]
        if len(given_up) >= self._roster.num_desired["inference"] and not self.engines.processes():
            raise RunFailed(f"no engine is left: {given_up[-1]}")


def _unfit(ranks: Mapping[str, Status]) -> dict[str, str]:
    """Ranks that must be replaced, each with why."""
    return {
        name: f"{'died' if status.get('state') == 'dead' else 'failed'}: {status.get('error')}"
        for name, status in ranks.items()
        if status.get("state") in NEEDED
    }
