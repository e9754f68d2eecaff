"""The balance at work: from what a tick has seen to an observation, from a decision to a transaction, both journalled.

Decides nothing itself: `balance.decide` does, once a window. The journal's lines suffice to make every decision anew.
"""

from __future__ import annotations

from collections.abc import Mapping

from dspark_train.balance.decide import EARLY_FRAC, decide
from dspark_train.balance.decision import Decision, State
from dspark_train.balance.outlook import Outlook, outlook
from dspark_train.balance.replay import BEGAN, SEEN, began, recorded
from dspark_train.balance.rule import Settings
from dspark_train.balance.seen import Costs, EngineSeen, Mode, Observation, RankSeen, Split, more_cautious
from dspark_train.controller.board import now_text
from dspark_train.controller.context import RunContext
from dspark_train.controller.engine_pool import EnginePool
from dspark_train.controller.hearing import Status
from dspark_train.controller.roster import Pool
from dspark_train.controller.scaling import Scaling
from dspark_train.controller.trainer_pool import TrainerPool
from dspark_train.errors import DSparkError
from dspark_train.report.state import DecisionState
from dspark_train.schedule.messages import LedgerView

REFUSED_S = 1800.0
"""How long a split that could not be had is not asked for again."""


class Balancing:
    """Ticked by the controller's thread. Its memory is lost with the controller: rates are learnt again in a window."""

    def __init__(self, context: RunContext, scaling: Scaling, engines: EnginePool, trainers: TrainerPool) -> None:
        self._board, self._roster, self._topology = context.board, context.roster, context.topology
        self._scaling, self._engines, self._trainers = scaling, engines, trainers
        self._settings = Settings.of(context.resolved)
        self._state = State()
        self._began = False
        self._quiet_key: tuple[object, ...] = ()
        self._is_disturbed = True
        self._refused: list[tuple[float, Split]] = []
        self._first: tuple[float, int] | None = None
        self.outlook: Outlook | None = None
        """What is known and expected; None while the mode is off."""

    def tick(self, now_s: float, view: LedgerView, seen: Mapping[str, Status]) -> None:
        """Look once a window, and act on what is decided."""
        self._note_disturbance(view, seen)
        modes = self._modes()
        if set(modes) == {"off"}:
            self.outlook = None
            return
        last_s = self._state.at_s
        if last_s is not None and now_s - last_s < EARLY_FRAC * self._settings.rule.window_s:
            return
        if not self._began:
            self._began = True
            self._board.event(BEGAN, "balance", "the balance begins", **began(self._settings, self._state))
        observation = self._observe(now_s, view, seen, modes)
        self._state, decision = decide(self._settings, self._state, observation)
        self.outlook = outlook(self._settings, self._state, observation)
        self._is_disturbed = False
        self._board.event(SEEN, "balance", decision.text(), **recorded(observation, decision))
        self._tell(decision)
        if decision.acts:
            self._act(now_s, decision)

    # -- looking ---------------------------------------------------------------------------------------------------

    def _note_disturbance(self, view: LedgerView, seen: Mapping[str, Status]) -> None:
        """A validation round, a checkpoint, another group: rates of a window with such a thing in it do not count."""
        rounds = view.last_validation.get("step")
        checkpoints = [seen.get(name, {}).get("checkpoint_step") for name in self._trainers.group]
        key = (rounds, max((step for step in checkpoints if step is not None), default=None), view.generation)
        if key != self._quiet_key:
            self._quiet_key, self._is_disturbed = key, True

    def _modes(self) -> tuple[Mode, Mode]:
        run: Mode = self._board.state.mode
        balance = self._topology.balance
        return more_cautious(run, balance.inference), more_cautious(run, balance.trainers)

    def _observe(
        self, now_s: float, view: LedgerView, seen: Mapping[str, Status], modes: tuple[Mode, Mode]
    ) -> Observation:
        wanted = self._roster.num_desired
        leads = self._engines.ready_leads()
        transaction = self._roster.transaction
        is_busy = transaction is not None and transaction.state == "running"
        self._refused = [(at_s, split) for at_s, split in self._refused if now_s - at_s < REFUSED_S]
        return Observation(
            at_s=now_s,
            split=Split(wanted["inference"], wanted["trainers"]),
            engines=tuple(_engine(name, seen[name]) for name in leads if name in seen),
            ranks=tuple(_rank(name, seen[name]) for name in self._trainers.group if name in seen),
            num_pending=self._num_pending(),
            num_silent=sum(name not in seen for name in (*leads, *self._trainers.group)),
            is_running=view.state == "running" and not is_busy,
            is_excluded=self._is_disturbed,
            remaining_s=self._remaining_s(now_s, view),
            costs=Costs(
                engine_start_s=self._engines.last_start_s,
                rank_start_s=self._trainers.last_start_s,
                pause_s=self._trainers.last_pause_s,
            ),
            inference_mode=modes[0],
            trainers_mode=modes[1],
            pinned=tuple(pool for pool, is_pinned in self._roster.pinned.items() if is_pinned),
            refused=tuple(split for _, split in self._refused),
        )

    def _num_pending(self) -> int:
        wanted = self._roster.num_desired
        settled = self._engines.is_settled(wanted["inference"]), self._trainers.is_settled(wanted["trainers"])
        return settled.count(False)

    def _remaining_s(self, now_s: float, view: LedgerView) -> float | None:
        """At the mean pace since the balance first looked."""
        if self._first is None:
            self._first = (now_s, view.step)
        at_s, step = self._first
        if view.step <= step:
            return None
        return (view.total_steps - view.step) * (now_s - at_s) / (view.step - step)

    # -- acting ----------------------------------------------------------------------------------------------------

    def _act(self, now_s: float, decision: Decision) -> None:
        """Order the move. Where one pool must give room first, the other's part follows from the next decisions."""
        to, now = decision.to, decision.now
        orders: dict[Pool, str] = {}
        if to.num_engines != now.num_engines:
            orders["inference"] = str(to.num_engines)
        if to.num_ranks != now.num_ranks:
            orders["trainers"] = str(to.num_ranks)
        try:
            self._scaling.order(orders, dry_run=False, last_pause_s=self._trainers.last_pause_s, by_hand=False)
        except DSparkError as error:
            self._refused.append((now_s, to))
            self._board.event("balance.refused", "balance", f"{decision.text()}: {error}")

    def rolled_back(self, now_s: float, num_to: Mapping[Pool, int]) -> None:
        """A transaction to these sizes was rolled back."""
        sizes = {**self._roster.num_desired, **num_to}
        self._refused.append((now_s, Split(sizes["inference"], sizes["trainers"])))

    def _tell(self, decision: Decision) -> None:
        if not decision.reason.is_move:
            return
        pool: Pool = "inference" if decision.to.num_engines != decision.now.num_engines else "trainers"
        before, after = decision.now.of(pool), decision.to.of(pool)
        told = {"at": now_text(), "pool": pool, "from": before, "to": after, "reason": decision.text()}
        self._board.set(last_decision=DecisionState.model_validate(told))


def _engine(name: str, status: Status) -> EngineSeen:
    return EngineSeen(name, float(status.get("tokens", 0.0)), float(status.get("busy_s", 0.0)))


def _rank(name: str, status: Status) -> RankSeen:
    figures = [float(status.get(key) or 0.0) for key in ("tokens", "busy_s", "wait_s", "fetch_s")]
    return RankSeen(name, *figures)
