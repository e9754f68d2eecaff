"""A whole run against speculators' own online training: same engine, data, draft, steps and cores, in turns.

A step is one pack in both, as theirs is. What its trainer refuses on a CPU is patched from outside, and shown.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from itertools import pairwise
from pathlib import Path
from statistics import mean
from typing import Any

from dspark_train.bench.children import Child
from dspark_train.bench.members import ENGINE_CORE, TRAINER_CORE, pinned
from dspark_train.bench.spread import Spread, ratios
from dspark_train.bench.store_master import LOOPBACK, running_master
from dspark_train.bench.timed_run import NUM_WARM_UP_STEPS, run_tokens_per_s
from dspark_train.engine.server import VllmServer
from dspark_train.errors import StartError
from dspark_train.plan.spec import Plan, bind_process
from dspark_train.store.ports import reserve_port
from dspark_train.topology.resolve import Resolved

TRAINING = "dspark_train.bench.peer_training"
CONNECTOR = "dspark_train.bench.peer_connector", "CpuMooncakeConnector"
"""By name, since they import what only their own processes need."""
SEGMENT_BYTES = 1 << 30
"""What each of their clients gives to the store."""
WRITER_THREADS = 1
"""Of their engine: a put in flight spins, and two of them would take both cores."""
NUM_LAST_STEPS = 5
"""Over which the loss at the end is taken."""
OVERRIDES = ("data.step_packs=1", "trainers.ranks.max=1")


def measure(
    topology: Path, sets: Sequence[str], run: tuple[Resolved, Plan], num_steps: int, num_pairs: int
) -> dict[str, Any]:
    """Both, ``num_pairs`` times. sets: of the run, `pipeline.overrides` and OVERRIDES included. Raises StartError."""
    pairs: list[Mapping[str, Mapping[str, float]]] = []
    patches: list[str] = []
    for number in range(num_pairs):
        with tempfile.TemporaryDirectory(prefix="dspark-bench-") as root:
            name = f"peer-{number}"
            rate = run_tokens_per_s(topology, sets, Path(root), name, num_steps)
            lines = [json.loads(line) for line in (Path(root) / name / "metrics.jsonl").read_text().splitlines()]
            ours = {"tokens_per_s": rate, "loss": last_loss(lines)}
            theirs, patches = _their_run(Path(root), *run, num_steps)
            pairs.append({"ours": ours, "peer": theirs})
    return figures(pairs, patches)


def figures(pairs: Sequence[Mapping[str, Mapping[str, float]]], patches: Sequence[str]) -> dict[str, Any]:
    """Medians, the ratio by pairs with its spread, and how far apart the losses at the end are."""
    rates = {side: [pair[side]["tokens_per_s"] for pair in pairs] for side in ("ours", "peer")}
    losses = {side: mean(pair[side]["loss"] for pair in pairs) for side in ("ours", "peer")}
    ratio = ratios(rates["ours"], rates["peer"])
    return {
        "ours_tokens_per_s": Spread.of(rates["ours"]).median,
        "peer_tokens_per_s": Spread.of(rates["peer"]).median,
        "ratio": ratio.median,
        "ratio_spread": [ratio.low, ratio.high],
        "ours_loss": losses["ours"],
        "peer_loss": losses["peer"],
        "patches": list(patches),
        "pairs": list(pairs),
    }


def last_loss(steps: Sequence[Mapping[str, Any]]) -> float:
    """The mean over the last steps."""
    return float(mean(step["loss"] for step in steps[-NUM_LAST_STEPS:]))


def their_tokens_per_s(steps: Sequence[Mapping[str, Any]], tokens_per_step: float) -> float:
    """The rate between steps of one epoch; their validation and checkpoints between epochs are left out."""
    kept = steps[NUM_WARM_UP_STEPS - 1 :]
    gaps_s = [b["at_s"] - a["at_s"] for a, b in pairwise(kept) if a["epoch"] == b["epoch"]]
    if not gaps_s:
        raise StartError("the peer's training has too few steps to measure: raise --steps")
    return float(tokens_per_step * len(gaps_s) / sum(gaps_s))


def _their_run(root: Path, resolved: Resolved, plan: Plan, num_steps: int) -> tuple[dict[str, float], list[str]]:
    with running_master(root / "peer-master.log") as master, _reserved() as port:
        server = _their_engine(resolved, plan, master.rpc, port, root)
        with server, closing(Child(TRAINING, root / "peer-training.log")) as child:
            with pinned(ENGINE_CORE):
                server.start(resolved.topology.engines.start_timeout_s)
            flat = their_config(resolved, server.base_url, master.rpc, root, num_steps)
            told = child.ask("train", flat=flat, core=TRAINER_CORE)
    steps = told["steps"]
    # Their profile tells a rate and a time; the tokens of a step are what both are of.
    tokens = mean(step["profile_tokens_per_s"] * step["profile_step_ms"] / 1000 for step in steps)
    return {"tokens_per_s": their_tokens_per_s(steps, tokens), "loss": last_loss(steps)}, list(told["patches"])


@contextmanager
def _reserved() -> Iterator[int]:
    """A free port for as long as the engine needs it."""
    lock = reserve_port()
    try:
        yield lock.port
    finally:
        lock.release()


def _their_engine(resolved: Resolved, plan: Plan, master: str, port: int, root: Path) -> VllmServer:
    """The engine of the plan, with their connector instead of ours."""
    hosts = {node.name: LOOPBACK for node in plan.nodes}
    ports = {"engine-1.0.http": port, "master.rpc": int(master.rpartition(":")[2])}
    log = root / "peer-engine.log"
    bound = bind_process(plan.process("engine-1.0"), hosts=hosts, ports=ports, run="peer", log=str(log))
    argv = list(bound.argv)
    argv[argv.index("--kv-transfer-config") + 1] = json.dumps(
        {
            "kv_connector": CONNECTOR[1],
            "kv_role": "kv_producer",
            "kv_connector_module_path": CONNECTOR[0],
            "kv_connector_extra_config": {
                "mooncake": {
                    "local_hostname": LOOPBACK,
                    "metadata_server": "P2PHANDSHAKE",
                    "master_server_address": master,
                    "global_segment_size": SEGMENT_BYTES,
                    "local_buffer_size": resolved.topology.store.client_buffer_mib << 20,
                    "protocol": "tcp",
                    "device_name": "",
                    "num_writer_threads": WRITER_THREADS,
                }
            },
        }
    )
    return VllmServer(argv, {**bound.env, "MOONCAKE_LOCAL_HOSTNAME": LOOPBACK}, log, f"http://{LOOPBACK}:{port}")


def their_config(resolved: Resolved, url: str, master: str, root: Path, num_steps: int) -> dict[str, Any]:
    """Our draft's fields, and what their loop needs beside them: one loader worker, each step logged."""
    data = Path(resolved.topology.data.path)
    gib = 2**30
    own = {
        "data_path": str(data / "dataset"),
        "token_freq_path": str(data / "token_freq.pt"),
        "train_data_ratio": 0.9,
        "hidden_states_backend": "mooncake",
        "vllm_endpoint": f"{url}/v1",
        "on_missing": "generate",
        "num_workers": 1,
        "mooncake_master": master,
        "mooncake_metadata_server": "P2PHANDSHAKE",
        "mooncake_protocol": "tcp",
        "mooncake_device": "",
        "mooncake_global_segment_gib": SEGMENT_BYTES / gib,
        "mooncake_local_buffer_gib": (resolved.topology.store.client_buffer_mib << 20) / gib,
        "epochs": num_steps,
        "max_steps": num_steps,
        "checkpoint_freq": num_steps,
        "log_freq": 1,
        "save_path": str(root / "peer-checkpoints"),
        "log_dir": str(root / "peer-logs"),
        "no_resume_from_checkpoint": True,
    }
    return {**resolved.train, **own}
