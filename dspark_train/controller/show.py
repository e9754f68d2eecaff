"""Puts what a tick has seen into the run's state."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from dspark_train.controller.board import Board
from dspark_train.controller.hearing import Status
from dspark_train.controller.observe import Observer, ledger_state, limiting_pool, store_state
from dspark_train.controller.roster import Roster
from dspark_train.plan.spec import Plan
from dspark_train.report.state import CheckpointState
from dspark_train.schedule.messages import LedgerView


class Show:
    """Owns the observer, which remembers the members' counters."""

    def __init__(self, board: Board, roster: Roster, plan: Callable[[], Plan]) -> None:
        self._board, self._roster, self._plan = board, roster, plan
        self._observer = Observer()

    def show(
        self,
        now_s: float,
        view: LedgerView,
        engines: Mapping[str, Status],
        ranks: Mapping[str, Status],
        seen: Mapping[str, Status],
    ) -> None:
        """Set the state's figures. engines, ranks: process -> status, as the pools show them; seen: as heard."""
        wanted, nodes = self._roster.num_desired, self._roster.nodes
        node_of = {p.name: nodes[p.node].address for p in self._plan().processes if p.node in nodes}
        inference = self._observer.pool(now_s, wanted["inference"], engines, node_of)
        trainers = self._observer.pool(now_s, wanted["trainers"], ranks, node_of, in_step=True)
        transaction = self._roster.transaction
        self._board.set(
            step=view.step,
            total_steps=view.total_steps,
            epoch=view.epoch,
            loss=view.last_metrics.get("loss"),
            accept_len=view.last_metrics.get("accept_len"),
            validation_loss=view.last_validation.get("loss"),
            validation_accept_len=view.last_validation.get("accept_len"),
            tokens_per_s=trainers.tokens_per_s,
            pools={"inference": inference, "trainers": trainers},
            store=store_state(seen.get("master", {})),
            ledger=ledger_state(view),
            bottleneck=limiting_pool({"inference": inference, "trainers": trainers}),
            checkpoint=_checkpoint([seen.get(member.name, {}) for member in self._roster.group]),
            generation=view.generation,
            pinned=[pool for pool, is_pinned in self._roster.pinned.items() if is_pinned],
            drained=sorted(set(self._roster.drained.values())),
            transaction=None if transaction is None else transaction.model_dump(),
        )


def _checkpoint(ranks: list[Status]) -> CheckpointState | None:
    """The newest that any rank tells of: after a change of the group the first may not have written one."""
    written = [(int(r["checkpoint_step"]), float(r["checkpoint_at_s"])) for r in ranks if r.get("checkpoint_at_s")]
    if not written:
        return None
    step, at_s = max(written)
    return CheckpointState(step=step, age_s=round(max(0.0, time.time() - at_s), 1))
