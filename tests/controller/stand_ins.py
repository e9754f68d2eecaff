"""Members that do nothing but answer, for tests of what the controller does with them.

A file `fault-NAME` in the run directory makes the member NAME misbehave: its content says how.
"""

import time
from pathlib import Path

from dspark_train.errors import PeerLost, StartError
from dspark_train.schedule.messages import LedgerView


class StandIn:
    def __init__(self, run_dir, peers, name="", **_):
        self.root, self.peers, self.name = Path(run_dir), peers, name
        self.stopped = False

    def fault(self):
        path = self.root / f"fault-{self.name}"
        return path.read_text() if path.exists() else ""

    def note(self, text):
        with (self.root / "calls").open("a") as file:
            file.write(f"{self.name} {text}\n")

    def reserve_ports(self, wanted=None):
        if wanted:
            self.note(f"reserve {wanted}")
        return wanted or {"http": 20001, "rpc": 20002, "metrics": 20003}

    def start(self, hosts, ports):
        self.note("start")
        while (self.root / f"slow-{self.name}").exists():
            time.sleep(0.01)
        if self.fault() == "no-start":
            raise StartError(f"{self.name} exited with code 1", f"{self.root}/logs/{self.name}.log", ["out of memory"])
        return {"segment": f"{self.name}:1", "capacity_bytes": 1 << 20, "pid": 7}

    def stop(self, grace_s):
        self.note("stop")


class Master(StandIn):
    def __init__(self, run_dir, peers):
        super().__init__(run_dir, peers, "master")

    def status(self):
        if self.fault() in ("dead", "hung"):
            state = self.fault()
            (self.root / "fault-master").unlink()
            return {"state": state, "error": "killed"}
        return {"state": "ready", "used_bytes": 1, "capacity_bytes": 2, "num_keys": 3, "num_evicted": 0}


class Engine(StandIn):
    def probe(self, segment):
        self.note(f"probe {segment}")

    def feed(self, life):
        self.note("feed")

    def drain(self):
        self.note("drain")

    def status(self):
        state = "dead" if self.fault() == "dead" else "ready"
        return {"state": state, "pid": 8, "tokens": 0, "busy_s": 0, "blocked_s": 0, "error": self.fault()}


class Rank(StandIn):
    generation, pause_s = 0, None

    def warm(self):
        self.note("warm")

    def expect(self, spec):
        if self.fault() == "no-expect":
            (self.root / f"fault-{self.name}").unlink()
            raise PeerLost(f"the process of {self.name} ended, seen during expect")
        self.note(f"expect {spec.rank}/{spec.world_size} at {spec.first_unit}")
        self.generation, self.pause_s = spec.generation, 0.25

    def halt(self, grace_s):
        self.note("halt")
        return {"ended": True, "step": 2, "uncommitted": None}

    def clear_store(self, keep_prefix):
        return 3

    def reserve_rendezvous(self):
        return "127.0.0.1", 20002

    def join(self, spec):
        self.note(f"join {spec.rank}/{spec.world_size} at {spec.first_unit} from {spec.resume_step}")
        while (self.root / "slow-join").exists():
            time.sleep(0.01)
        self.generation = spec.generation
        return {"resumed_step": spec.resume_step or 0}

    def status(self):
        if self.fault() == "nan":
            return {"state": "failed", "error": "loss is NaN at step 3"}
        ending = self.root / "ending"
        state = ending.read_text() if ending.exists() else "training"
        return {"state": state, "pid": 9, "generation": self.generation, "pause_s": self.pause_s} | self.saved()

    def saved(self):
        return {"checkpoint_error": "no space left on device"} if self.fault() == "full" else {}


class Ledger(StandIn):
    def __init__(self, run_dir, resume_step, peers):
        super().__init__(run_dir, peers, "ledger")
        self.note(f"resume_step {resume_step}")

    generation = 0

    def set_group(self, members, generation):
        self.note(f"set_group {[member.name for member in members]}")
        self.generation = generation
        return 5

    def announce_group(self, members, generation):
        self.note(f"announce_group {[member.name for member in members]}")
        self.generation = generation
        return 7

    def lose_store(self):
        self.note("lose_store")
        return 4

    def run(self):
        self.note("run")

    def drop_engine(self, engine, is_suspect=False):
        return 2

    def view(self):
        ending = self.root / "ending"
        state = ending.read_text() if ending.exists() else "running"
        counts = dict.fromkeys(("planned", "leased", "ready", "taken", "trained", "failed", "regenerated"), 0)
        return LedgerView(
            **counts, unit=3, step=2, total_steps=12, epoch=0, resident_bytes=0, state=state, generation=self.generation
        )

    def announce_stop(self, now):
        self.note(f"announce_stop {now}")
        (self.root / "ending").write_text("stopped")
        return 6
