"""The controller: brings a run up, watches it, and takes it down. One detached actor a run.

Everything it knows is on disk (`roster.json`, `state.json`, `events.jsonl`), and the data plane needs it only for
changes: one that is started again after its own death adopts what it finds.
"""

from __future__ import annotations

import os
import socket
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from dspark_train.cluster.protocol import Cluster, NodeInfo
from dspark_train.controller.address import api_port, api_token
from dspark_train.controller.adoption import adopt
from dspark_train.controller.api import ApiServer, build_app
from dspark_train.controller.binding import match_nodes
from dspark_train.controller.board import Board, now_text
from dspark_train.controller.context import RunContext
from dspark_train.controller.crew import CREATE_TIMEOUT_S, FACTORIES, Crew
from dspark_train.controller.ending import cause_of_failure, leave_report
from dspark_train.controller.figures import read_lines
from dspark_train.controller.places import Places
from dspark_train.controller.plateau import Plateau, PlateauRule
from dspark_train.controller.restarts import RestartRule, Restarts
from dspark_train.controller.roster import Pool, Roster
from dspark_train.controller.starts import Starts
from dspark_train.controller.startup import Startup
from dspark_train.controller.watch import Watch
from dspark_train.errors import DSparkError, StartError
from dspark_train.plan.run_layout import RunLayout
from dspark_train.plan.spec import Plan
from dspark_train.report import state_file
from dspark_train.report.state import ControllerState, PoolState, RunState
from dspark_train.topology.resolve import Resolved

TICK_S = 0.5
LINGER_S = 2.0
"""How long the API still answers after the end, so that followers see the last state from it."""


class Controller:
    """The member "controller". ``launch`` returns at once; the run goes on in a thread."""

    def __init__(
        self,
        run_dir: str,
        peers: Cluster,
        factories: Mapping[str, str] = FACTORIES,
        linger_s: float = LINGER_S,
        tick_s: float = TICK_S,
    ) -> None:
        """factories: kind of process -> "module:Class" of its member. A run that is under way is adopted at once."""
        self._factories, self._linger_s, self._tick_s = factories, linger_s, tick_s
        self._layout = layout = RunLayout(Path(run_dir))
        self._cluster = peers
        self._resolved = Resolved.model_validate_json(layout.resolved.read_text(encoding="utf-8"))
        self._plan = Plan.model_validate_json(layout.plan.read_text(encoding="utf-8"))
        self._stop_order: bool | None = None
        self._watch: Watch | None = None
        self._context: RunContext | None = None
        last = state_file.read(layout.state)
        if last is None:
            self._roster = Roster(num_desired=_starts_with(self._resolved))
            self._board = Board(layout, _first_state(layout, self._resolved))
            return
        self._board = Board(layout, last)
        self._roster = Roster.read(layout.roster) or Roster(num_desired=_starts_with(self._resolved))
        threading.Thread(target=self._run, args=(self._adopt,), name="run", daemon=True).start()

    # -- what others call ------------------------------------------------------------------------------------------

    def launch(self, resume: bool) -> None:
        """Begin the run; returns at once."""
        threading.Thread(target=self._run, args=(lambda: self._begin(resume),), name="run", daemon=True).start()

    def order_stop(self, now: bool) -> None:
        """Stop at the next boundary with a checkpoint, or at once without; returns at once."""
        self._stop_order = now or bool(self._stop_order)

    @property
    def state(self) -> RunState:
        """The run now."""
        return self._board.state

    def rebalance(self, mode: Literal["auto", "advise", "off"]) -> None:
        """Set the balance's mode; "auto" also unpins the pools that a manual `scale` has fixed."""
        if self._board.state.is_terminal:
            raise StartError(f"run {self._layout.name} is {self._board.state.state}")
        if mode == "auto":
            self._roster.pinned = {}
        self._board.set(mode=mode)
        self._board.event("rebalance.mode", "controller", f"the balance's mode is {mode}", mode=mode)
        if self._context is not None:
            self._context.save()

    def scale(
        self, orders: Mapping[Pool, str], dry_run: bool, drain: Sequence[str] = (), undrain: Sequence[str] = ()
    ) -> dict[str, Any]:
        """See `Scaling.order`. Raises UsageError while the run is not under way."""
        watch = self._watch
        if watch is None or self._board.state.state != "running":
            raise StartError(f"run {self._layout.name} is {self._board.state.state}: only a running run can be scaled")
        pause_s = watch.trainers.last_pause_s
        return watch.scaling.order(orders, drain=drain, undrain=undrain, dry_run=dry_run, last_pause_s=pause_s)

    # -- the run -----------------------------------------------------------------------------------------------------

    def _run(self, bring_up: Any) -> None:
        end, reason = "failed", ""
        if self._board.state.is_terminal:
            end, reason = self._board.state.state, self._board.state.reason
        else:
            try:
                url = self._board.state.controller.url
                self._board.set(controller=ControllerState(url=url, pid=os.getpid(), host=socket.gethostname()))
                bring_up()
                end = self._follow()
            except DSparkError as error:
                reason = str(error)
            except Exception as error:  # noqa: BLE001 - a bug of ours must still take the run down cleanly
                self._layout.traceback.write_text(traceback.format_exc(), encoding="utf-8")
                reason = f"internal error: {error!r}; traceback: {self._layout.traceback}"
        self._finish(end, reason)

    def _begin(self, resume: bool) -> None:
        self._board.event("run.starting", "controller", f"run {self._layout.name} starts", resume=resume)
        nodes = match_nodes(self._plan.nodes, self._cluster.nodes())
        self._roster.set_nodes(nodes)
        self._crew = self._new_crew(nodes)
        self._serve()
        engines = Startup(self._crew, self._plan, self._resolved, self._board, self._roster).bring_up(resume)
        self._roster.is_up = True
        self._go_on(engines)

    def _adopt(self) -> None:
        """Go on with the run of a controller that died."""
        self._board.event("controller.restarted", "controller", "the controller died and is back; it adopts the run")
        if not self._roster.is_up:
            self._crew = self._new_crew({})
            raise StartError("the controller died while the run was starting: launch it again")
        self._crew = self._new_crew(self._roster.node_infos())
        self._crew.ports.update(self._roster.ports)
        self._serve()
        found = adopt(self._crew, self._board, self._roster)
        self._go_on(found.engines)
        if found.cause and self._watch is not None:
            self._watch.recovery.regroup(found.cause, found.dead)

    def _new_crew(self, nodes: Mapping[str, NodeInfo]) -> Crew:
        topology = self._resolved.topology
        rotated = (topology.run.log_max_mib * 2**20, topology.run.log_keep)
        return Crew(self._cluster, self._layout, nodes, self._factories, topology.supervision.fence_s, *rotated)

    def _go_on(self, engines: list[str]) -> None:
        supervision = self._resolved.topology.supervision
        context = RunContext(
            crew=self._crew,
            board=self._board,
            starts=Starts(self._crew, self._board, self._resolved.topology),
            places=Places(self._crew, self._board, self._roster, lambda: self._plan, self._save),
            resolved=self._resolved,
            roster=self._roster,
            restarts=Restarts(RestartRule(max_deaths=supervision.max_deaths, window_s=supervision.death_window_s)),
            plan=lambda: self._plan,
            set_plan=self._set_plan,
        )
        self._context = context
        watch = Watch(context)
        watch.engines.take_over(engines)
        context.save()
        self._watch = watch
        validation = self._resolved.topology.validation
        rule = PlateauRule(validation.stop_after_rounds, validation.min_gain)
        self._plateau = Plateau(rule, read_lines(self._layout.validation))
        self._board.set(state="running", phase="training", generation=self._roster.generation)

    def _save(self) -> None:
        if self._context is not None:
            self._context.save()

    def _set_plan(self, plan: Plan) -> None:
        """The plan has grown; members made from now on read it."""
        beside = self._layout.plan.with_suffix(".new")
        beside.write_text(plan.model_dump_json(indent=1), encoding="utf-8")
        beside.replace(self._layout.plan)
        self._plan = plan

    def _serve(self) -> None:
        """Open the API on the head node's own address, with a token only the run's owner can read."""
        host = self._crew.hosts[self._plan.process("controller").node]
        self._port = api_port(self._board.state.controller.url)
        token = api_token(self._layout.token, is_kept=self._roster.is_up)
        self._api = ApiServer(build_app(token, self, self._layout), host, self._port.port)
        self._api.start()
        self._board.set(controller=self._board.state.controller.model_copy(update={"url": self._api.url}))

    def _follow(self) -> str:
        """Tick until the run ends; returns the state it ends in. Raises RunFailed."""
        assert self._watch is not None
        stopping = False
        while True:
            view, ranks = self._watch.tick()
            states = {str(status.get("state")) for status in ranks.values()}
            if self._stop_order is None and (why := self._plateau.look(view.last_validation)):
                self._board.event("run.plateau", "controller", f"training ends early: {why}")
                self.order_stop(now=False)
            if self._stop_order is None and (why := self._watch.drains.lost_ground):
                self._board.event("run.loses_ground", "controller", f"stopping with a checkpoint: {why}")
                self.order_stop(now=False)
            if self._stop_order is not None and not stopping:
                stopping = True
                self._begin_stop(self._stop_order)
            if view.state == "done" and states == {"done"}:
                self._watch.tick()
                return "done"
            if stopping and states <= {"stopped", "done"}:
                self._watch.tick()
                return "stopped"
            time.sleep(self._tick_s)

    def _begin_stop(self, now: bool) -> None:
        boundary = self._crew.call("ledger", "announce_stop", now, timeout_s=CREATE_TIMEOUT_S)
        self._board.event("run.stopping", "controller", f"stopping before unit {boundary}", now=now)
        self._board.set(state="stopping", phase="finishing the step in hand" + ("" if now else ", then a checkpoint"))

    # -- the end ---------------------------------------------------------------------------------------------------

    def _finish(self, end: str, reason: str) -> None:
        """Take everything down, write the last state, and end this actor too."""
        self._board.set(phase="taking the run down", reason=reason)
        if hasattr(self, "_crew"):
            for text in self._crew.end_all(last=("ledger", "master")):
                self._board.event("teardown.problem", "controller", text)
        self._close_pools()
        cause = cause_of_failure(self._layout, reason) if end == "failed" else ""
        self._board.set(state=end, phase="", root_cause=cause)
        self._board.event(f"run.{end}", "controller", reason or f"run {self._layout.name} is {end}")
        time.sleep(self._linger_s)
        if hasattr(self, "_api"):
            self._api.stop()
            self._port.release()
        leave_report(self._layout)
        try:
            self._cluster.kill("controller")
        except DSparkError as error:
            self._board.event("teardown.problem", "controller", f"the controller could not be ended: {error}")
            os._exit(1)  # what is left of the run must not look alive; Ray reaps the actor with its process

    def _close_pools(self) -> None:
        pools = {
            name: pool.model_copy(
                update={
                    "ready": 0,
                    "pending": 0,
                    "members": [m.model_copy(update={"state": "stopped"}) for m in pool.members],
                }
            )
            for name, pool in self._board.state.pools.items()
        }
        self._board.set(pools=pools)


def _starts_with(resolved: Resolved) -> dict[Pool, int]:
    topology = resolved.topology
    return {"inference": topology.engines.count.start, "trainers": topology.trainers.ranks.start}


def _first_state(layout: RunLayout, resolved: Resolved) -> RunState:
    topology = resolved.topology
    return RunState(
        run=layout.name,
        state="starting",
        phase="placing the plan on the cluster",
        mode=topology.balance.mode,
        total_steps=topology.run.max_steps or 0,
        pools={pool: PoolState(desired=num, pending=num) for pool, num in _starts_with(resolved).items()},
        started_at=now_text(),
    )
