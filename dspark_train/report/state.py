"""What `status` shows, as types: written by the controller, read by the command line, from `state.json` or the API.

Names and meaning of the keys are fixed; keys may be added. Figures not yet known are None.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field

RunPhase = Literal["starting", "running", "stopping", "stopped", "done", "failed", "lost"]
TERMINAL: frozenset[str] = frozenset({"stopped", "done", "failed"})

MemberPhase = Literal["starting", "ready", "draining", "stopped", "dead"]


class EngineLoad(BaseModel):
    """What an engine is at: leases and lost samples as its feeder counts them, the others from vLLM's own metrics.

    lost, finished, prompt_tokens: since the engine's start. kv_cache_frac: share of its KV cache in use.
    """

    leased: int = 0
    lost: int = 0
    running: int | None = None
    waiting: int | None = None
    finished: int | None = None
    prompt_tokens: int | None = None
    kv_cache_frac: float | None = None


class MemberState(BaseModel):
    """One engine or rank. pid: of the process that does the work (the API server of an engine)."""

    name: str
    node: str
    pid: int | None = None
    state: MemberPhase = "starting"
    tokens_per_s: float = 0.0
    since_s: float = 0.0
    """Seconds in this state."""
    log: str = ""
    """Path of its log, from the run directory."""
    error: str = ""
    load: EngineLoad | None = None
    """Of an engine that works, on the process that feeds it."""


class PoolState(BaseModel):
    """One pool. service_tokens_per_s: work over time not blocked; blocked_frac: share of time without work.

    Ranks wait for one another: blocked_frac of their pool is that of the rank that waits least.
    """

    desired: int
    ready: int = 0
    pending: int = 0
    draining: int = 0
    tokens_per_s: float = 0.0
    service_tokens_per_s: float | None = None
    blocked_frac: float | None = None
    members: list[MemberState] = Field(default_factory=list)


class StoreState(BaseModel):
    """The store, from the master's own metrics."""

    used_bytes: int = 0
    capacity_bytes: int = 0
    num_samples: int = 0
    num_evicted: int = 0


class LedgerState(BaseModel):
    """Samples of the run by state, each use counted."""

    planned: int = 0
    leased: int = 0
    ready: int = 0
    taken: int = 0
    trained: int = 0
    failed: int = 0
    regenerated: int = 0


class DecisionState(BaseModel):
    """The balance's last decision. ``from`` and ``to`` in JSON."""

    at: str
    pool: str
    num_from: int = Field(serialization_alias="from", validation_alias="from")
    num_to: int = Field(serialization_alias="to", validation_alias="to")
    reason: str


class CheckpointState(BaseModel):
    """The newest durable checkpoint."""

    step: int
    age_s: float


class ControllerState(BaseModel):
    """Where the controller answers, so that the command line can ask it, or see that it is gone."""

    url: str = ""
    pid: int = 0
    host: str = ""


class RunState(BaseModel):
    """A run now."""

    run: str
    state: RunPhase
    phase: str = ""
    """What the run is doing or waiting for, in words."""
    reason: str = ""
    """Why it failed or stopped."""
    root_cause: str = ""
    """Of a run that failed: who failed first, and why."""
    mode: Literal["auto", "advise", "off"] = "off"
    step: int = 0
    total_steps: int = 0
    epoch: int = 0
    loss: float | None = None
    accept_len: float | None = None
    validation_loss: float | None = None
    validation_accept_len: float | None = None
    tokens_per_s: float = 0.0
    pools: dict[Literal["inference", "trainers"], PoolState]
    store: StoreState = Field(default_factory=StoreState)
    ledger: LedgerState = Field(default_factory=LedgerState)
    bottleneck: Literal["inference", "trainers", "link"] | None = None
    last_decision: DecisionState | None = None
    checkpoint: CheckpointState | None = None
    generation: int = 0
    pinned: list[str] = Field(default_factory=list)
    """Pools that a manual `scale` has fixed, until `rebalance auto`."""
    drained: list[str] = Field(default_factory=list)
    """Addresses of nodes on which nothing is started any more, until `scale --undrain`."""
    transaction: dict[str, Any] | None = None
    """The last change of the pools' sizes."""
    faults: list[str] = Field(default_factory=list)
    started_at: str = ""
    written_at: str = ""
    """When the controller last wrote this, ISO-8601 UTC."""
    controller: ControllerState = Field(default_factory=ControllerState)

    @property
    def is_terminal(self) -> bool:
        """Whether the run has ended, well or badly."""
        return self.state in TERMINAL

    def to_json(self) -> str:
        """One JSON object, with the keys as documented."""
        return self.model_dump_json(by_alias=True)


def exit_code(state: RunState) -> int:
    """What `status` ends with: 0 healthy or ended well, 1 failed, 4 degraded, 5 the controller does not answer."""
    if state.state == "failed":
        return 1
    if state.state == "lost":
        return 5
    degraded = state.state == "running" and (
        state.faults or any(pool.ready < pool.desired for pool in state.pools.values())
    )
    return 4 if degraded else 0
