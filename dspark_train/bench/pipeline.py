"""A whole run against the slower of its two sides: what the flow between them costs.

Engine alone, trainer alone and the run are measured one after the other, again and again. In all three the engine's
processes stay on one core and the rank's on another.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from dspark_train.bench import engine_alone, trainer_alone
from dspark_train.bench.children import Child
from dspark_train.bench.members import ENGINE_CORE, TRAINER_CORE, write_run
from dspark_train.bench.spread import Spread
from dspark_train.bench.timed_run import RUN_TIMEOUT_S, run_tokens_per_s
from dspark_train.plan.spec import Plan
from dspark_train.topology.resolve import GIB, Resolved

WARM_UP_S, ENGINE_FOR_S = 5.0, 15.0
ENDLESS_STEPS = 1_000_000
TRAINER_STEPS = 100
"""At most, of the trainer alone: all their samples lie in its segment, which more steps would only make larger."""
ROOM = 1.25
"""A segment for the trainer alone: its samples, the mark below which they must stay, and what allocation loses."""


def overrides(num_steps: int) -> tuple[str, ...]:
    """What is set over the topology in all three: one engine, one rank, and nothing but training."""
    return (
        f"run.max_steps={num_steps}",
        "engines.count.start=1",
        "trainers.ranks.start=1",
        "data.validation_frac=0",
        f"checkpoint.every_steps={10 * num_steps}",
    )


def side_overrides(resolved: Resolved, num_steps: int) -> dict[str, tuple[str, ...]]:
    """What is set beyond that for a side alone: an engine that never runs out, a segment that holds all of its run.

    A longer run is told from its first steps: a trainer that never waits is as fast later on.
    """
    steps = min(num_steps, TRAINER_STEPS)
    return {
        "engine": (f"run.max_steps={ENDLESS_STEPS}",),
        "trainer": (f"run.max_steps={steps}", f"store.segment_gib={filled_gib(resolved, steps):.4f}"),
    }


def filled_gib(resolved: Resolved, num_steps: int) -> float:
    """The segment that holds all samples of so many steps."""
    per_token = (resolved.bytes_per_token or 0) + 8
    num_bytes = num_steps * resolved.topology.data.step_packs * resolved.topology.data.seq_len * per_token
    return max(resolved.topology.store.segment_gib, ROOM * num_bytes / GIB / resolved.topology.store.high_mark_frac)


def measure(
    topology: Path,
    sets: Sequence[str],
    sides: Mapping[str, tuple[Resolved, Plan]],
    num_steps: int,
    num_rounds: int,
) -> dict[str, Any]:
    """All three, ``num_rounds`` times. sets: of the run, the `overrides` included; sides: with `side_overrides`.

    Raises StartError and whatever ends a member.
    """
    rounds = []
    for number in range(num_rounds):
        with tempfile.TemporaryDirectory(prefix="dspark-bench-") as root:
            roots = {side: Path(root) / side for side in sides}
            pace = {"warm_up_s": WARM_UP_S, "for_s": ENGINE_FOR_S}
            engine = _alone(roots["engine"], engine_alone.__name__, sides["engine"], **pace)
            trainer = _alone(roots["trainer"], trainer_alone.__name__, sides["trainer"])
            whole = run_tokens_per_s(topology, sets, Path(root) / "runs", f"bench-{number}", num_steps)
            rounds.append({"engine": engine, "trainer": trainer, "run": whole})
    return figures(rounds)


def figures(rounds: Sequence[dict[str, float]]) -> dict[str, Any]:
    """Medians, and the efficiency of each round against the sides measured right before."""
    parts = {side: Spread.of([each[side] for each in rounds]) for side in ("engine", "trainer", "run")}
    efficiency = Spread.of([each["run"] / min(each["engine"], each["trainer"]) for each in rounds])
    return {
        "engine_alone_tokens_per_s": parts["engine"].median,
        "trainer_alone_tokens_per_s": parts["trainer"].median,
        "run_tokens_per_s": parts["run"].median,
        "efficiency": efficiency.median,
        "efficiency_spread": [efficiency.low, efficiency.high],
        "rounds": list(rounds),
    }


def _alone(root: Path, module: str, run: tuple[Resolved, Plan], **fields: float) -> float:
    write_run(root, *run)
    core = ENGINE_CORE if module == engine_alone.__name__ else TRAINER_CORE
    with closing(Child(module, root / "logs" / "bench.log")) as child:
        child.ask("start", run_dir=str(root), core=core)
        child.begin("measure", **fields)
        answer = child.end(RUN_TIMEOUT_S)
        child.ask("stop")
    return float(answer["tokens_per_s"])
