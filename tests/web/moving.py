"""Members that get on: a run on the fake cluster whose figures move as those of a real one do, for the page."""

import json
import math
import time
from dataclasses import replace
from pathlib import Path

from tests.controller import stand_ins

STEP_S = 0.5
STEP_TOKENS = 1000
TOTAL_STEPS = 4000
MIB = 1 << 20


class Master(stand_ins.Master):
    def status(self):
        used = int((0.35 + 0.2 * math.sin(time.monotonic() / 7)) * 512) * MIB
        return {**super().status(), "used_bytes": used, "capacity_bytes": 512 * MIB, "num_keys": used // (3 * MIB)}


class Engine(stand_ins.Engine):
    fed_s = None

    def feed(self, life):
        super().feed(life)
        self.fed_s = time.monotonic()

    def status(self):
        fed_s = time.monotonic() - self.fed_s if self.fed_s else 0.0
        counters = {"tokens": int(1900 * fed_s), "busy_s": fed_s * 0.98, "blocked_s": fed_s * 0.02}
        return {**super().status(), **counters}


class Rank(stand_ins.Rank):
    begun_s = None

    def join(self, spec):
        self.begun_s = time.monotonic()
        return super().join(spec)

    def status(self):
        begun_s = time.monotonic() - self.begun_s if self.begun_s else 0.0
        counters = {"tokens": int(950 * begun_s), "busy_s": begun_s * 0.6, "wait_s": begun_s * 0.4}
        checkpoint = {"checkpoint_step": 20, "checkpoint_at_s": time.time() - 31}
        return {**super().status(), **counters, **checkpoint}


class Ledger(stand_ins.Ledger):
    """Commits a step each half second, and writes its line."""

    began_s = None
    written = 0

    def run(self):
        super().run()
        self.began_s = time.monotonic()

    def view(self):
        step = int((time.monotonic() - self.began_s) / STEP_S) if self.began_s else 0
        while self.written < step:
            self.written += 1
            line = {"step": self.written, **figures(self.written), "tokens": STEP_TOKENS, "wait_s": 0.2, "step_s": 0.5}
            with (Path(self.root) / "metrics.jsonl").open("a") as file:
                file.write(json.dumps(line) + "\n")
        counts = {"planned": 52000 - 8 * step, "leased": 48, "ready": 61, "taken": 16, "trained": 8 * step}
        validation = figures(step - step % 20) if step >= 20 else {}
        seen = {"last_metrics": figures(step) if step else {}, "last_validation": validation}
        return replace(
            super().view(), step=step, unit=step + 3, total_steps=TOTAL_STEPS, regenerated=2, **counts, **seen
        )


def figures(step):
    return {
        "loss": 1.2 + 7 * math.exp(-step / 40) + 0.05 * math.sin(step * 1.7),
        "accept_len": 3.1 - 2 * math.exp(-step / 55) + 0.05 * math.sin(step * 2.3),
    }
