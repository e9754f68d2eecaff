"""The samples of a run, counted by what has become of them. Pure; docs/ledger.md tells what the counts are over."""

from __future__ import annotations

from dspark_train.schedule.flow import Flow
from dspark_train.schedule.messages import LedgerState, LedgerView
from dspark_train.schedule.slot import State
from dspark_train.schedule.steps import Schedule

COUNTED_PACKS = 200_000
"""Up to so many packs the counts are over the whole run; in a longer one they grow by stretches of so many."""


class Counts:
    """Makes views of one flow; remembers how many samples there are to come, which is slow to count."""

    def __init__(self, schedule: Schedule, flow: Flow) -> None:
        self._schedule, self._flow = schedule, flow
        self._counted = (-1, 0)

    def view(self, unit: int, state: LedgerState, key_prefix: str) -> LedgerView:
        """The counts now, ``unit`` being the next to commit."""
        flow, schedule = self._flow, self._schedule
        leased, ready, taken = (flow.counts[state] for state in (State.LEASED, State.READY, State.TAKEN))
        step = schedule.num_steps_before(unit)
        return LedgerView(
            planned=self._num_counted() - leased - ready - taken - flow.num_trained - flow.num_failed,
            leased=leased,
            ready=ready,
            taken=taken,
            trained=flow.num_trained,
            failed=flow.num_failed,
            regenerated=flow.num_regenerated,
            unit=unit,
            step=step,
            total_steps=schedule.num_steps,
            epoch=schedule.epoch_of_step(max(step, 1)),
            resident_bytes=flow.backlog.held_bytes,
            state=state,
            reason=flow.reason,
            key_prefix=key_prefix,
            leased_by=flow.leases.num_held(),
            wrong_by=dict(flow.wrong_in_a_row),
            done_tokens_by=dict(flow.done_tokens_by),
        )

    def _num_counted(self) -> int:
        """Samples of the run, or of its stretches up to the furthest open unit."""
        stretch = max(1, COUNTED_PACKS // self._schedule.spec.step_packs)
        end = min(self._schedule.num_units, (self._flow.frontier // stretch + 1) * stretch)
        if end != self._counted[0]:
            self._counted = (end, self._schedule.num_samples_before(end))
        return self._counted[1]
