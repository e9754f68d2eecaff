"""What a plan comes to, in few lines: one engine, one rank, the master, and how much of each is where.

`python -m tests.plan.golden` writes the golden files anew, to be read before they are committed.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from dspark_train.plan.build import build_plan
from dspark_train.plan.spec import Plan
from dspark_train.topology.facts import TargetFacts
from dspark_train.topology.load import load
from dspark_train.topology.resolve import resolve

TOPOLOGIES = Path(__file__).parents[2] / "topologies"
GOLDEN = Path(__file__).parent / "golden"
NAMES = ("gb300-3node", "gb300-12node", "gb300-nvl72")


def planned(name: str) -> Plan:
    """The plan of a shipped topology, as on a machine that cannot read the target."""
    return build_plan(resolve(load(TOPOLOGIES / f"{name}.yaml", ()), TargetFacts()))


def summary(plan: Plan) -> dict[str, Any]:
    """The last engine's processes, the last rank, the master, and the counts."""
    last = max(int(p.name.split("-")[1].split(".")[0]) for p in plan.processes if p.kind == "engine")
    chosen = [p for p in plan.processes if p.name.startswith(f"engine-{last}.") or p.name == "master"]
    chosen.append([p for p in plan.processes if p.kind == "rank"][-1])
    gpus: Counter[str] = Counter()
    for process in plan.processes:
        gpus[process.node] += process.num_gpus
    return {
        "nodes": len(plan.nodes),
        "processes": Counter(process.kind for process in plan.processes),
        "gpus": sum(gpus.values()),
        "gpus_of_each_node": sorted(set(gpus.values())),
        "capacity": {k: v for k, v in plan.capacity.model_dump().items() if v is not None},
        "shown": [
            {"name": p.name, "node": p.node, "gpus": p.num_gpus, "argv": " ".join(p.argv), "env": p.env} for p in chosen
        ],
    }


if __name__ == "__main__":
    for name in NAMES:
        (GOLDEN / f"{name}.json").write_text(json.dumps(summary(planned(name)), indent=1) + "\n", encoding="utf-8")
