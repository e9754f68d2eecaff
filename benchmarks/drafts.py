"""Which draft the target accepts most of: each algorithm trained alike from several seeds, then measured by `eval`.

    .venv/bin/python benchmarks/drafts.py OUT [--steps 240] [--seeds 1 2 3] [--algorithms dspark dflash eagle3]

Same target, data, steps and learning rate; the data set is that of topologies/quickstart.yaml, prepared before. Greedy,
on the prompts that `eval` carries (none of them trained on). What was measured already in OUT is kept. Prints a table,
and writes OUT/drafts.json.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from statistics import fmean
from typing import Any

ROOT = Path(__file__).parents[1]
DSPARK = Path(sys.executable).parent / "dspark-train"
TOPOLOGIES = {"dspark": "quickstart.yaml", "dflash": "quickstart-dflash.yaml", "eagle3": "quickstart-eagle3.yaml"}
SERVED = {"dflash", "eagle3"}
"""What vLLM serves on CPU; DSpark needs a GPU there."""


def main() -> None:
    asked = arguments()
    asked.out.mkdir(parents=True, exist_ok=True)
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in asked.algorithms}
    for seed in asked.seeds:
        for name in asked.algorithms:
            found[name].append(measured(asked, name, seed))
    (asked.out / "drafts.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    for line in table(found):
        print(line)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--steps", type=int, default=240)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--algorithms", nargs="+", choices=TOPOLOGIES, default=list(TOPOLOGIES))
    parser.add_argument("--max-tokens", type=int, default=64)
    return parser.parse_args()


def measured(asked: argparse.Namespace, name: str, seed: int) -> dict[str, Any]:
    """What `eval` says of one draft; trained first, unless an earlier call did."""
    run, kept = f"{name}-{seed}", asked.out / f"{name}-{seed}.json"
    if kept.exists():
        return json.loads(kept.read_text(encoding="utf-8"))
    draft = asked.out / "drafts" / run
    if not (draft / "config.json").exists():
        every = max(1, asked.steps // 4)
        settings = [f"run.seed={seed}", f"run.max_steps={asked.steps}", f"validation.every_steps={every}"]
        settings += [f"checkpoint.every_steps={every}"]
        overrides = [part for setting in settings for part in ("--set", setting)]
        call("launch", "--topology", str(ROOT / "topologies" / TOPOLOGIES[name]), "--name", run, *overrides)
        call("export", run, "--out", str(draft))
    method = "both" if name in SERVED else "reference"
    text = call("eval", str(draft), "--method", method, "--max-tokens", str(asked.max_tokens), "--json")
    kept.write_text(text, encoding="utf-8")
    return json.loads(text)


def call(*args: str) -> str:
    """One command of ours; its progress is shown, its answer returned."""
    print("$ dspark-train", *args, file=sys.stderr, flush=True)
    done = subprocess.run([DSPARK, *args], stdout=subprocess.PIPE, text=True, check=False, cwd=ROOT)
    if done.returncode:
        sys.exit(f"dspark-train {' '.join(args)} failed with {done.returncode}:\n{done.stdout}")
    return done.stdout


def table(found: dict[str, list[dict[str, Any]]]) -> list[str]:
    """Mean over the seeds, lowest and highest in brackets; served beside reference where both are there."""
    domains = list(next(iter(found.values()))[0]["domains"])
    lines = [f"| domain | {' | '.join(found)} |", f"|---|{'---|' * len(found)}"]
    for domain in [*domains, None]:
        cells = (cell(each, domain) for each in found.values())
        lines.append(f"| {domain or 'mean of domains'} | {' | '.join(cells)} |")
    return lines


def cell(each: list[dict[str, Any]], domain: str | None) -> str:
    text = spread([length(one, domain) for one in each])
    if all("served" in one for one in each):
        text += f"; served {spread([length(one['served'], domain) for one in each])}"
    return text


def length(one: dict[str, Any], domain: str | None) -> float:
    return float(one["domains"][domain]["accept_len"] if domain else one["macro_accept_len"])


def spread(values: list[float]) -> str:
    return f"{fmean(values):.3f} ({min(values):.3f}-{max(values):.3f})"


if __name__ == "__main__":
    main()
